"""Tests that commands fit one screen of 80 columns and 24 lines by default, with an empty store and with a full one."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest
from support_programs import NODES, PROGRAM, changed, put
from support_terminal import on_terminal

from precompiled.graph import key
from precompiled.store import artifact_format as fmt
from precompiled.store import package_format
from precompiled.store.artifacts import Store
from precompiled.store.packages import PackageStore

ROWS = 24
KEY = fmt.digest(b"0")
COMMANDS = (
    [],
    ["--help"],
    ["status"],
    ["explain"],
    ["explain", "--newest"],
    ["explain", "model.Net0.forward"],
    ["cache", "ls"],
    ["cache", "show", KEY[:8]],
    ["cache", "size"],
    ["cache", "stats"],
    ["daemon", "logs"],
    ["daemon", "stop"],
    ["remote", "ls"],
    ["config"],
    ["config", "mode", "workers"],
)


def fill(store: Store) -> None:
    """Publish 30 graphs of 60 operations, and packages of 30 functions with 40 guards."""
    for number in range(30):
        many = changed(
            put(*NODES, [*PROGRAM["graph"][0][:2], *[["f", ["fn", "_operator", "mul"], [{"n": 0}, number], []]] * 60])
        )
        data = json.dumps(many).encode()
        manifest = fmt.Manifest(
            key=fmt.digest(str(number).encode()),
            name=f"Net{number}.forward [0/0]",
            components=key.components(data),
            environment={"torch": "2.13.0"},
            device="cpu",
            guards="",
            files={},
            compile_s=12.5,
            created=time.time() - 100 * number,
            compiled_by={"pid": "7"},
        )
        store.publish(fmt.Payload(manifest, {fmt.BUNDLE: b"x" * 100, fmt.PROGRAM: fmt.pack_program(data)}))
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


@pytest.fixture(scope="module", params=["empty", "full"])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp(request.param)
    if request.param == "full":
        fill(Store(root / "cache"))
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PRECOMPILED")}
    return {
        **variables,
        "PRECOMPILED_CACHE_DIR": str(root / "cache"),
        "PRECOMPILED_RUNTIME_DIR": str(root / "run"),
        "XDG_CONFIG_HOME": str(root / "config"),
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_output_fits_one_screen(command: list[str], environment: dict[str, str], tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "precompiled", *command]
    with on_terminal(arguments, environment, tmp_path, rows=200) as terminal:
        terminal.ended()
        lines = terminal.screen.text().splitlines()
    assert 0 < len(lines) <= ROWS, "\n".join(lines)
    text = "\n".join(lines)
    assert "Traceback" not in text
    if command == ["cache", "ls"] and "Net0" in text:
        assert "and 21 older rows: --all shows them" in text and "30 artifacts" in text
