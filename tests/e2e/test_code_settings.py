"""Tests of Inductor settings that are code. The worker runs the user's pass, and the key depends on the pass's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host

pytestmark = pytest.mark.integration

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
from torch._inductor.custom_graph_pass import CustomGraphPass

COS = "cos"

def replaced(graph, name):
    for node in graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = getattr(torch.ops.aten, name).default

def own(graph):
    replaced(graph, COS)

class Own(CustomGraphPass):
    def __init__(self, name):
        self.name = name

    def __call__(self, graph):
        replaced(graph, self.name)

    def uuid(self):
        return "own", self.name

def of_a_function(name):
    def inner(graph):
        replaced(graph, name)
    return inner

def joint(module, inputs):
    replaced(module.graph, COS)
    module.recompile()
    return module

seen = []

def refused(graph):
    seen.append(graph)
    own(graph)

made = {
    "own function": lambda: own,
    "own object": lambda: Own("tan"),
    "of a function": lambda: of_a_function("exp"),
    "refused": lambda: refused,
    "joint": lambda: joint,
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
if sys.argv[1] == "joint":
    x.requires_grad_()
    with torch._functorch.config.patch(joint_custom_pass=made):
        found = torch.compile(lambda x: x.sin() + 1)(x)
elif sys.argv[2:]:
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
    return served.project(passes=PASSES, main=PROGRAM)


def run(host: Host, project: Path, *arguments: str) -> list[Any]:
    """Run the program. Returns the functions that the compiled code computes, and the graph's report and key."""
    env = {"PYTHONPATH": str(project), "PRECOMPILED_PACKAGES": "off"}
    return list(host.program(str(project / "main.py"), *arguments, env=env).result())


SERVED = [("function", "cos"), ("object", "tan"), ("another object", "exp"), ("partial", "cos"), ("several", "cos")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "function"), SERVED)
def test_worker_runs_the_users_pass_and_the_next_process_hits(
    served: Host, project: Path, name: str, function: str
) -> None:
    computed, *state, key = run(served, project, name)
    assert (computed, state) == ([function], ["compiled", "swap", ""])
    assert run(served, project, name, "by configuration") == [[function], "compiled", "hit", "", key]


@pytest.mark.slow
def test_key_depends_on_the_code_of_the_pass(served: Host, project: Path) -> None:
    keys = {run(served, project, name)[-1] for name, _function in SERVED}
    (project / "passes.py").write_text(PASSES.replace("aten.cos.default", "aten.exp.default"))
    computed, *_state, key = run(served, project, "function")
    assert len(keys) == 5 and computed == ["exp"] and key not in keys


OWN = [("own function", "cos"), ("own object", "tan"), ("of a function", "exp"), ("joint", "cos")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "function"), OWN)
def test_worker_runs_a_pass_of_the_main_program_from_its_source(
    served: Host, project: Path, name: str, function: str
) -> None:
    computed, *state, key = run(served, project, name)
    assert (computed, state) == ([function], ["compiled", "swap", ""])
    assert run(served, project, name) == [[function], "compiled", "hit", "", key]
    text = (project / "main.py").read_text()
    (project / "main.py").write_text(text.replace("aten, name).default", 'aten, "neg").default'))
    computed, *state, other = run(served, project, name)
    assert (computed, state) == ([], ["compiled", "swap", ""]) and other != key


@pytest.mark.slow
@pytest.mark.reason("custom-pass")
def test_pass_without_complete_source_is_run_in_process(served: Host, project: Path) -> None:
    assert run(served, project, "refused")[:4] == [["cos"], "bypassed", "inline", "custom-pass"]


@pytest.mark.reason("custom-pass")
def test_lambda_as_a_pass_is_run_in_process(served: Host, project: Path) -> None:
    assert run(served, project, "lambda")[:4] == [["cos"], "bypassed", "inline", "custom-pass"]


@pytest.mark.slow
@pytest.mark.reason("undecodable-graph")
def test_pass_that_differs_in_the_worker_is_run_in_process(served: Host, project: Path) -> None:
    assert run(served, project, "uuid of one process")[:4] == [["tan"], "bypassed", "inline", "undecodable-graph"]
