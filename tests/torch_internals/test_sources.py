"""Tests of the source lines of a graph's operations.

A client sends the source lines beside the graph. The key of the graph does not contain the source lines. Malformed
source lines must do no harm.
"""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from support_graphs import captured

from precompiled.graph import about, capture, key, listing

X = torch.randn(4, 6)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        return hidden.relu() * 3  # part of the line


def branches(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda t: t.sin() + 1, lambda t: t.cos() - 1, (x,))


def shown(found: Any) -> list[listing.Operation]:
    program = capture.parse(found.program.to_bytes(about=about.text(found.module, {})))
    return listing.operations(program)


def test_each_operation_has_its_source_line() -> None:
    found = {item.text.partition(" = ")[2].partition("(")[0]: item.place for item in shown(captured(Net(), X))}
    linear, multiply = found["torch._C._nn.linear"], found["operator.mul"]
    assert linear is not None and multiply is not None
    assert (Path(linear.file).name, linear.function, linear.code) == (
        "test_sources.py",
        "forward",
        "hidden = self.linear(x)",
    )
    assert multiply.code == "return hidden.relu() * 3  # part of the line" and multiply.line == linear.line + 1


def test_nested_graphs_have_the_numbers_of_the_codec() -> None:
    found = captured(branches, X)
    lengths = [len(graph) for graph in json.loads(found.program.sections["graph"])]
    assert len(lengths) == 3
    assert [len(nodes) for nodes in json.loads(about.text(found.module, {}))["nodes"]] == lengths
    inner = [item for item in shown(found) if item.graph and ("sin" in item.text or "cos" in item.text)]
    assert len(inner) == 2 and all(item.place and "torch.cond" in item.place.code for item in inner)


def test_inputs_have_the_programs_names() -> None:
    program = capture.parse(captured(Net(), X).program.to_bytes())
    assert listing.input_name(program, 0) == ""
    names = json.loads(about.text(captured(Net(), X).module, {}))["inputs"]
    assert sorted(names) == ["self.linear.bias", "self.linear.weight", "x"]
    found = captured(Net(), X)
    for node in found.module.graph.nodes:
        vars(node).pop("_dynamo_source", None)
    # If Dynamo records no source for an input, the report shows Dynamo's own name.
    assert "L_x_" in json.loads(about.text(found.module, {}))["inputs"]


def test_calls_and_origins_of_settings_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_EXPLAINED", "1")
    found = captured(Net(), X)
    with torch._inductor.config.patch(max_fusion_size=7):
        program = json.loads(found.program.to_bytes(about=about.text(found.module, {"epilogue_fusion": True})))
    innermost, *_others = listing.calls(program)
    assert innermost.short.startswith("test_sources.py:") and "about.text" in innermost.code
    who = {
        "variable TRITON_EXPLAINED": "program",
        "inductor.max_fusion_size": "program",
        "inductor.epilogue_fusion": "options",
        "inductor.max_autotune": "",
    }
    assert {name: listing.set_by(program, name) for name in who} == who
    assert listing.cpu_flags(program) and not listing.cpu_flags({})


def test_key_ignores_source_lines() -> None:
    found = captured(Net(), X)
    with_, without = found.program.to_bytes(about=about.text(found.module, {})), found.program.to_bytes()
    assert with_ != without and key.components(with_) == key.components(without)
    assert {**capture.parse(with_), "about": 0} == {**capture.parse(without), "about": 0}


@pytest.mark.parametrize("trace", [7, "", "no frame", '  File "x", line 99999999999999999999, in f\n', "\0\ud800"])
def test_malformed_stack_trace_is_ignored(trace: Any) -> None:
    found = captured(Net(), X)
    for node in found.module.graph.nodes:
        node.meta["stack_trace"] = trace
    text = about.text(found.module, {})
    assert text == "" or json.loads(text)
    capture.parse(found.program.to_bytes(about=text))


def test_exception_while_reading_sources_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    found = captured(Net(), X)

    def broken(*arguments: object) -> str:
        raise RuntimeError("no such file system")

    monkeypatch.setattr(linecache, "getline", broken)
    assert about.text(found.module, {}) == ""


def test_length_of_source_lines_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    found = captured(Net(), X)
    monkeypatch.setattr(linecache, "getline", lambda *arguments: "x" * 100_000)
    assert len(about.text(found.module, {})) < 10_000
    monkeypatch.setattr(about, "MAX_CHARS", 10)
    assert about.text(found.module, {}) == ""
