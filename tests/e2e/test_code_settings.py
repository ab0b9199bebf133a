"""Settings of Inductor's that are code: the worker runs the user's pass, and the key says which it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host

PASSES = """
import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

def to_cos(graph, by=torch.ops.aten.cos.default):
    for node in graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = by

class Replaces(CustomGraphPass):
    def __init__(self, name):
        self.name, self.seen = name, [1, (2.0, None)]

    def __call__(self, graph):
        to_cos(graph, getattr(torch.ops.aten, self.name).default)

    def uuid(self):
        return "replaces", self.name

class Local(Replaces):
    def uuid(self):
        import os
        return os.getpid()
"""
PROGRAM = """
import functools, json, sys
import torch
import precompiled
precompiled.enable("wait")
import passes

made = {
    "function": lambda: passes.to_cos,
    "object": lambda: passes.Replaces("tan"),
    "another object": lambda: passes.Replaces("exp"),
    "partial": lambda: functools.partial(passes.to_cos),
    "several": lambda: [passes.to_cos, passes.Replaces("tan")],
    "lambda": lambda: lambda graph: passes.to_cos(graph),
    "uuid of one process": lambda: passes.Local("tan"),
}[sys.argv[1]]()
where = {"post_grad_custom_post_pass": made}
x = torch.tensor([0.5])
if sys.argv[2:]:
    with torch._inductor.config.patch(where):
        found = torch.compile(lambda x: x.sin() + 1)(x)
else:
    found = torch.compile(lambda x: x.sin() + 1, options=where)(x)
names = [name for name in ("sin", "cos", "tan", "exp") if torch.allclose(getattr(torch, name)(x) + 1, found)]
(graph,) = precompiled.report()
print(json.dumps([names, graph.state, graph.source, graph.reason, graph.key]))
"""


@pytest.fixture
def project(served: Host) -> Path:
    folder = served.root / "project"
    folder.mkdir()
    (folder / "passes.py").write_text(PASSES)
    (folder / "main.py").write_text(PROGRAM)
    return folder


def run(host: Host, project: Path, *arguments: str) -> list[Any]:
    """Which function the compiled code computes, the graph's state, source and reason, and its key."""
    env = {"PYTHONPATH": str(project), "PRECOMPILED_PACKAGES": "off"}
    return list(host.program(str(project / "main.py"), *arguments, env=env).result())


SERVED = [("function", "cos"), ("object", "tan"), ("another object", "exp"), ("partial", "cos"), ("several", "cos")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "function"), SERVED)
def test_a_pass_is_run_by_the_worker_and_hit_by_the_next_process(
    served: Host, project: Path, name: str, function: str
) -> None:
    computed, *state, key = run(served, project, name)
    assert (computed, state) == ([function], ["compiled", "swap", ""])
    assert run(served, project, name, "by configuration") == [[function], "compiled", "hit", "", key]


@pytest.mark.slow
def test_the_pass_is_in_the_key(served: Host, project: Path) -> None:
    keys = {run(served, project, name)[-1] for name, _function in SERVED}
    (project / "passes.py").write_text(PASSES.replace("aten.cos.default", "aten.exp.default"))
    computed, *_state, key = run(served, project, "function")
    assert len(keys) == 5 and computed == ["exp"] and key not in keys


@pytest.mark.reason("custom-pass")
def test_a_pass_without_a_name_is_run_in_process(served: Host, project: Path) -> None:
    assert run(served, project, "lambda")[:4] == [["cos"], "bypassed", "inline", "custom-pass"]


@pytest.mark.slow
@pytest.mark.reason("undecodable-graph")
def test_a_pass_that_is_another_in_the_worker_is_run_in_process(served: Host, project: Path) -> None:
    assert run(served, project, "uuid of one process")[:4] == [["tan"], "bypassed", "inline", "undecodable-graph"]
