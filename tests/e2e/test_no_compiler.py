"""Tests of a host without a working C++ compiler: a server stays eager, warns once, and writes no failure record."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from support_host import Host

pytestmark = pytest.mark.integration

# The program acts as a server. The server gets requests until the worker has failed, then more requests, and then a
# second graph.
SERVER = """
import json, time, torch, precompiled
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
compiled, later = torch.compile(model), torch.compile(lambda x: x.sin() + 1)
x = torch.randn(4, 8)
def serve(times):
    for _ in range(times):
        assert torch.allclose(compiled(x), model(x), atol=1e-5)
with torch.no_grad():
    serve(1)
    precompiled.wait()
    serve(20)
    assert torch.allclose(later(x), x.sin() + 1, atol=1e-5)
    precompiled.wait()
    assert torch.allclose(later(x), x.sin() + 1, atol=1e-5)
print(json.dumps([[graph.state, graph.reason, graph.calls_compiled] for graph in precompiled.report()]))
"""
# The program ends right after its first call, long before a worker has tried to compile the graph.
SHORT = """
import torch
compiled = torch.compile(lambda x: x.sin() + 1)
x = torch.randn(4, 8)
assert torch.equal(compiled(x), x.sin() + 1)
print("@served", flush=True)
"""
BROKEN = """#!/bin/sh
[ "$1" = --version ] && echo g++ 12 && exit 0
echo "fatal error: Python.h: no such file" >&2
exit 1
"""


@pytest.mark.reason("no-compiler")
@pytest.mark.parametrize(("compiler", "mode"), [("absent", "eager"), ("broken", "eager"), ("broken", "lookup")])
def test_server_without_a_compiler_stays_eager(served: Host, tmp_path: Path, compiler: str, mode: str) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    if compiler == "broken":
        (folder / "g++").write_text(BROKEN)
        (folder / "g++").chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if name != "CXX"}
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    given = {**variables, "PATH": f"{folder}:/bin/none", "CXX": "g++", "PRECOMPILED_MODE": mode, "PRECOMPILED": "1"}
    client = served.program("-m", "precompiled", "run", "--", served.python, str(program), env=given, forked=False)
    assert client.result() == [["failed", "no-compiler", 0]] * 2
    said = [line for line in client.errors if "no-compiler" in line]
    assert len(said) == 1 and "g++" in said[0], client.text()
    assert list(served.store.failures()) == []


def test_short_run_without_a_compiler_names_the_cause(served: Host, tmp_path: Path) -> None:
    program = tmp_path / "short.py"
    program.write_text(SHORT)
    given = {**os.environ, "PATH": "/bin/none", "CXX": "", "PRECOMPILED_MODE": "eager", "PRECOMPILED": "1"}
    client = served.program("-m", "precompiled", "run", "--", served.python, str(program), env=given, forked=False)
    client.wait_for("served")
    client.ended()
    (warning,) = client.errors
    assert warning.startswith(
        "precompiled:0: RuntimeWarning: graphs that need a C++ compiler stay eager (no-compiler): "
    )
    assert "g++" in warning and "Install g++" in warning
    assert list(served.store.failures()) == []


# A graph with collectives must not run eager, because other ranks may run it compiled.
COLLECTIVE = """
import json, os, torch
import torch.distributed._functional_collectives as collectives
from torch.distributed import group
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
compiled = torch.compile(lambda x: collectives.all_reduce(x.sin(), "sum", group.WORLD) + 1)
calls, error = 0, None
for _ in range(3):
    calls += 1
    try:
        compiled(torch.ones(8))
    except Exception as raised:
        error = [type(raised).__name__, str(raised).splitlines()[0]]
        break
torch.distributed.destroy_process_group()
print(json.dumps([calls, error]))
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_graph_that_must_not_run_eager_raises_torchs_error_at_its_first_call(served: Host, tmp_path: Path) -> None:
    (program := tmp_path / "train.py").write_text(COLLECTIVE)
    found = []
    for switch in ("0", "1"):
        given = {**os.environ, "PATH": "/bin/none", "CXX": "", "PRECOMPILED_MODE": "eager", "PRECOMPILED": switch}
        command = ("-m", "precompiled", "run", "--", served.python, str(program))
        client = served.program(*command, env=given, forked=False)
        found.append(client.result())
        assert "stay eager" not in client.text()
    plain, ours = found
    assert plain == ours
    assert ours[0] == 1 and "InvalidCxxCompiler" in ours[1][1]
