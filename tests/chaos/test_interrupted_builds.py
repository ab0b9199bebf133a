"""Tests that a worker killed while a compiler writes leaves no file that a later worker would use."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest
from support_host import TIMEOUT_S, Host

# This script stands in for g++. For the first output that matches the pattern, the script creates an empty file,
# reports it, and waits to be killed.
COMPILER = """\
#!/bin/sh
target=
previous=
for argument do
    [ "$previous" = -o ] && target=$argument
    previous=$argument
done
[ -n "$target" ] && basename "$target" >> {log}
case "$target" in
{pattern})
    if mkdir {once} 2>/dev/null; then
        : > "$target"
        echo "$target" > {event}
        exec sleep 1000
    fi
esac
exec {real} "$@"
"""
TARGETS = {"kernels": "*.main.so*", "header": "*/precompiled_headers/*.gch*", "vector-units": "*.so*"}


@pytest.mark.fault("compiler-dies")
@pytest.mark.skipif(not shutil.which("g++"), reason="a compiler stands in for g++")
@pytest.mark.slow
@pytest.mark.parametrize("what", TARGETS)
def test_file_that_a_killed_worker_was_building_is_built_again(
    host: Host, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TMPDIR must hold no precompiled header of another program, because a worker would copy this header. The path is
    # short, because sockets are created there.
    (host.root / "tmp").mkdir()
    # The prepared store already knows the CPU's vector units, which one case must detect again.
    shutil.rmtree(host.store.root)
    monkeypatch.setenv("TMPDIR", str(host.root / "tmp"))
    places = {name: host.root / name for name in ("log", "once", "event")}
    os.mkfifo(places["event"])
    compiler = host.root / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text(COMPILER.format(pattern=TARGETS[what], real=shutil.which("g++"), **places))
    compiler.chmod(0o755)
    host.start_daemon()
    environment = {"PATH": f"{compiler.parent}{os.pathsep}{os.environ['PATH']}"}
    client = host.start({"model": "mlp", "training": True}, environment)
    target = Path(places["event"].read_text().strip())  # the read returns once the compiler has started
    (worker,) = host.status().workers
    members = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
    os.killpg(worker.pid, signal.SIGKILL)
    _gone, alive = psutil.wait_procs(members, TIMEOUT_S)
    assert not alive

    # The daemon retries the job with another worker on the same scratch directory.
    reports = client.result()["reports"]
    assert [(graph["state"], graph["source"], graph["reason"]) for graph in reports] == [("compiled", "swap", "")]
    name = target.name.split(".so")[0].split(".gch")[0]
    begun = [line for line in places["log"].read_text().splitlines() if line.startswith(name)]
    assert len([line for line in begun if ".so" in line or ".gch" in line]) == 2, begun
    # A later worker would consider all of these files built, so none of them may be empty.
    found = [path for path in (host.root / "store" / "scratch").rglob("*") if path.suffix in (".so", ".o", ".gch")]
    assert len(found) >= 3 and all(path.stat().st_size for path in found), found
