"""Tests that commands fit one screen of 80 columns and 24 lines by default: with an empty store, with a full one, and
beside a daemon with many jobs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from support_artifacts import publish_artifact
from support_daemon import wait_until
from support_host import Host, new_host
from support_programs import NODES, PROGRAM, changed, put
from support_terminal import Screen, on_terminal

from precompiled.store import artifact_format as fmt
from precompiled.store import package_format, run_records
from precompiled.store.artifacts import Store
from precompiled.store.packages import PackageStore

ROWS, COLUMNS = 24, 80
KEY = fmt.digest(b"0")
COMMANDS = (
    [],
    ["--help"],
    ["status"],
    ["status", "--watch", "--once"],
    ["explain"],
    ["explain", "--newest"],
    ["explain", "model.Net0.forward"],
    ["explain", "pending"],
    ["cache", "ls"],
    ["cache", "show", KEY[:8]],
    ["cache", "show", "model.Net0.forward"],
    ["cache", "size"],
    ["cache", "stats"],
    ["cache", "stats", "--run", "last"],
    ["daemon", "logs"],
    ["remote", "ls"],
    ["watch", "--list"],
    ["doctor"],
    ["config"],
    ["config", "mode", "workers"],
    ["config", "show"],
    ["explain", "train.py"],
    ["watch"],
    ["watch", "--remove", "--all"],
    ["bake"],
    ["timeline", "--", "true"],
    ["disable"],
    ["cache"],
    ["cache", "dir"],
    ["cache", "gc"],
    ["daemon"],
    ["daemon", "cancel", "abcd"],
    ["daemon", "retry", "abcd"],
    ["remote", "push"],
    ["remote", "keys"],
    ["remote", "keys", "list"],
    ["remote", "keys", "trust"],
    ["farm", "status"],
    ["tools", "tune"],
    ["tools", "trace"],
    ["tools", "package", "no-such-file"],
    ["ls"],
)


def fill(store: Store) -> None:
    """Publish 30 graphs of 60 operations, and packages of 30 functions with 40 guards."""
    for number in range(30):
        many = changed(
            put(*NODES, [*PROGRAM["graph"][0][:2], *[["f", ["fn", "_operator", "mul"], [{"n": 0}, number], []]] * 60])
        )
        publish_artifact(store, fmt.digest(str(number).encode()), many, name=f"Net{number}.forward [0/0]")
        function = package_format.function_key("model", f"Net{number}.forward", "code", one_graph=False)
        for value in range(2):
            guards = [
                package_format.GuardText(f"L['self'].a{at}", "EQUALS_MATCH", "", ["int", str(value)], "/me/model.py:3")
                for at in range(40)
            ]
            header = package_format.Header(
                function,
                "model",
                f"Net{number}.forward",
                "code",
                False,
                "compiled",
                [],
                meaning=fmt.digest(b"%d" % value),
            )
            PackageStore(store.root).publish(header, package_format.About(guards).to_bytes(), b"body")


MANY_GRAPHS = """\
import sys
import torch
import precompiled

precompiled.enable()
for number in range(12):
    source = f"def function_with_quite_a_long_name_{number}(x):\\n    return x * {number}.5 + x.cosh()"
    exec(source)
    torch.compile(locals()[f"function_with_quite_a_long_name_{number}"])(torch.ones(8, 16))
print("@submitted", flush=True)
sys.stdin.read()
"""


def busy_host(left: ExitStack) -> Host:
    """Returns a host whose daemon compiles one of 24 graphs, of two programs, until the test ends."""
    host = left.enter_context(new_host())
    fill(host.store)
    daemon = psutil.Process(host.start_daemon())
    for name in ("train.py", "serve_the_requests_of_all_my_customers.py"):
        file = host.root / name
        file.write_text(MANY_GRAPHS.replace(".5", ".5" if name == "train.py" else ".7"))
        client = host.program(str(file), forked=False)
        if name == "train.py":
            wait_until(lambda: any(worker.state == "busy" for worker in host.status().workers), "a compile runs")
            for worker in daemon.children(recursive=True):
                worker.suspend()
                left.callback(worker.resume)
        client.wait_for("submitted")
    wait_until(lambda: sum(len(process.graphs) for process in run_records.processes(host.store.root)) == 24)
    return host


@pytest.fixture(scope="module", params=["empty", "full", pytest.param("busy", marks=pytest.mark.integration)])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    root = tmp_path_factory.mktemp(request.param)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PRECOMPILED")}
    variables["XDG_CONFIG_HOME"] = str(root / "config")
    with ExitStack() as left:
        if request.param == "busy":
            host = busy_host(left)
            assert host.status().queue_depth > 10
            yield {**host.environment(), "XDG_CONFIG_HOME": str(root / "config")}
            return
        if request.param == "full":
            fill(Store(root / "cache"))
        yield {**variables, "PRECOMPILED_CACHE_DIR": str(root / "cache"), "PRECOMPILED_RUNTIME_DIR": str(root / "run")}
        assert not (root / "run" / "socket").exists(), "one of the commands started a daemon"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_output_fits_one_screen(command: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "precompiled", *command]
    with on_terminal(arguments, environment, tmp_path, columns=COLUMNS, rows=ROWS) as terminal:
        terminal.ended()
    whole = Screen(COLUMNS, 1000)
    whole.feed(terminal.written)
    text = whole.text()
    lines = text.splitlines()
    assert 0 < len(lines) <= ROWS, text
    assert "Traceback" not in text
    if command == ["cache", "ls"] and "Net0" in text:
        assert "older: --all shows them" in text and " artifacts" in text
    if command == ["explain"] and "of 12 graphs" in text:
        assert "more lines: --all shows them" in lines[-1]
