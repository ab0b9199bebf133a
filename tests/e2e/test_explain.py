"""Tests of `explain` and `show` with a real daemon and real compiles.

`explain --newest` names what changed since the closest graph. `show` prints the source lines of a graph.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support_host import Host

pytestmark = pytest.mark.integration

PROGRAM = """\
import json, sys
import torch
import precompiled

precompiled.enable()

def scaled(x):
    hidden = x * 2.0
    return hidden.relu() + 1

compiled = torch.compile(scaled, dynamic=False)
x = torch.ones(8, 16, requires_grad=True)
torch.testing.assert_close(compiled(x), scaled(x))
assert precompiled.wait(300)
print(json.dumps([vars(graph) for graph in precompiled.report()]))
"""


@pytest.fixture(scope="module")
def base(shared_host: Host) -> str:
    """Runs the unchanged program, and returns the key of its graph."""
    graph = run(shared_host, PROGRAM)
    assert graph["state"] == "compiled"
    return str(graph["key"])


def run(host: Host, program: str, **variables: str) -> dict[str, Any]:
    """Run a program and return the report of its only graph."""
    path = host.root / "program.py"
    path.write_text(program)
    (graph,) = host.program(str(path), env=variables).result()
    return dict(graph)


@pytest.mark.parametrize(
    ("old", "new", "section", "words"),
    [
        (
            "x * 2.0",
            "x * 3.0",
            "graph",
            ["operator.mul(%0, 2.0) -> operator.mul(%0, 3.0)", "program.py:8, in scaled", "hidden = x * 3.0"],
        ),
        ("hidden.relu()", "hidden.tanh()", "graph", ["%1.relu() -> %1.tanh()"]),
        (
            "x = torch",
            "torch.use_deterministic_algorithms(True)\nx = torch",
            "modes",
            ["deterministic: False -> True", "torch.use_deterministic_algorithms"],
        ),
        ("(8, 16,", "(12, 16,", "inputs", ["input 0: shape [8, 16] -> [12, 16]", "new size: x: shape"]),
        (
            "dynamic=False",
            "dynamic=False, options={'max_fusion_size': 7}",
            "configs",
            ["inductor.max_fusion_size: 64 -> 7"],
        ),
    ],
    ids=["constant", "operation", "mode", "shape", "option"],
)
def test_explain_names_what_changed(
    shared_host: Host, base: str, old: str, new: str, section: str, words: list[str]
) -> None:
    assert old in PROGRAM
    graph = run(shared_host, PROGRAM.replace(old, new))
    assert graph["state"] == "compiled" and graph["source"] == "swap" and graph["key"] != base
    text = shared_host.command("explain", "--newest")
    assert all(part in text for part in words), text
    found = json.loads(shared_host.command("explain", "--newest", "--json"))
    assert found["key"] == graph["key"] and found["nearest"] is not None
    assert section in {change["section"] for change in found["changes"]}
    assert json.loads(shared_host.command("explain", graph["key"], "--json")) == found


def test_renamed_variables_are_a_hit(shared_host: Host, base: str) -> None:
    graph = run(shared_host, "# moved\n\n" + PROGRAM.replace("hidden", "inner"))
    assert graph["key"] == base and graph["source"] == "hit"


def test_show_prints_the_source_lines_of_operations(shared_host: Host, base: str) -> None:
    text = shared_host.command("cache", "show", base)
    assert "program.py:8, in scaled: hidden = x * 2.0\n" in text and "= operator.mul(%0, 2.0)" in text
    nodes = json.loads(shared_host.command("cache", "show", base, "--json"))["graph"]
    sources = [node["source"] for node in nodes if "mul" in node["text"]]
    assert [Path(item["file"]).name for item in sources] == ["program.py"]
    kept = {path.name for path in (shared_host.store.artifacts / f"{base}.0").iterdir()}
    assert "program.json.gz" in kept


def test_show_code_prints_the_code_that_inductor_generated(shared_host: Host, base: str) -> None:
    (variant,) = json.loads(shared_host.command("cache", "show", base, "--code", "--json"))["variants"]
    forward, backward = variant["code"]
    assert "forward" in forward.splitlines()[0] and "backward" in backward.splitlines()[0]
    assert all("def call(" in text for text in variant["code"])
    assert forward.rstrip() in shared_host.command("cache", "show", base, "--code")


@pytest.mark.reason("aliased-mutation")
def test_failed_compile_is_explained(shared_host: Host, base: str) -> None:
    """`explain` reads the graph from the failure record. The worker refuses this graph, because it changes one of two
    inputs that share memory.
    """
    program = (
        PROGRAM.replace("def scaled(x):", "def scaled(x, y):")
        .replace("    hidden = x * 2.0", "    y.add_(1)\n    hidden = x * 2.0")
        .replace(", requires_grad=True", "")
        .replace("torch.testing.assert_close(compiled(x), scaled(x))", "compiled(x, x.view(-1))")
    )
    graph = run(shared_host, program)
    assert graph["reason"] == "aliased-mutation"
    found = json.loads(shared_host.command("explain", "--newest", "--json"))
    assert found["state"] == "failed" and found["key"] == graph["key"] and found["nearest"] is not None
    assert any(
        "y.add_(1)" in (node["source"] or {}).get("code", "")
        for node in json.loads(shared_host.command("cache", "show", graph["key"], "--json"))["graph"]
    )
