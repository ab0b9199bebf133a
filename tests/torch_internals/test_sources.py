"""Where operations come from: beside the graph, never in its key, and no trouble whatever is odd."""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from support_graphs import captured

from precompiled.graph import capture, key, listing
from precompiled.torch_internals import source_lines

X = torch.randn(4, 6)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.linear(x)
        return hidden.relu() * 3  # the last line


def branches(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda t: t.sin() + 1, lambda t: t.cos() - 1, (x,))


def shown(found: Any) -> list[listing.Operation]:
    program = capture.parse(found.program.to_bytes(about=source_lines.about(found.module)))
    return listing.operations(program)


def test_each_operation_has_the_users_line() -> None:
    found = {item.text.partition(" = ")[2].partition("(")[0]: item.place for item in shown(captured(Net(), X))}
    linear, multiply = found["torch._C._nn.linear"], found["operator.mul"]
    assert linear is not None and multiply is not None
    assert (Path(linear.file).name, linear.function, linear.code) == (
        "test_sources.py", "forward", "hidden = self.linear(x)"
    )  # fmt: skip
    assert multiply.code == "return hidden.relu() * 3  # the last line" and multiply.line == linear.line + 1


def test_graphs_inside_of_operators_are_numbered_as_the_codec_does() -> None:
    found = captured(branches, X)
    lengths = [len(graph) for graph in json.loads(found.program.sections["graph"])]
    assert len(lengths) == 3
    assert [len(nodes) for nodes in json.loads(source_lines.about(found.module))["nodes"]] == lengths
    inner = [item for item in shown(found) if item.graph and ("sin" in item.text or "cos" in item.text)]
    assert len(inner) == 2 and all(item.place and "torch.cond" in item.place.code for item in inner)


def test_inputs_have_dynamos_names() -> None:
    program = capture.parse(captured(Net(), X).program.to_bytes())
    assert listing.input_name(program, 0) == ""
    names = json.loads(source_lines.about(captured(Net(), X).module))["inputs"]
    assert len(names) == 3 and any("weight" in name for name in names) and "L_x_" in names


def test_the_key_ignores_them() -> None:
    found = captured(Net(), X)
    with_, without = found.program.to_bytes(about=source_lines.about(found.module)), found.program.to_bytes()
    assert with_ != without and key.components(with_) == key.components(without)
    assert {**capture.parse(with_), "about": 0} == {**capture.parse(without), "about": 0}


@pytest.mark.parametrize("trace", [7, "", "no frame", '  File "x", line 99999999999999999999, in f\n', "\0\ud800"])
def test_an_odd_trace_is_no_trouble(trace: Any) -> None:
    found = captured(Net(), X)
    for node in found.module.graph.nodes:
        node.meta["stack_trace"] = trace
    text = source_lines.about(found.module)
    assert text == "" or json.loads(text)
    capture.parse(found.program.to_bytes(about=text))


def test_whatever_is_raised_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    found = captured(Net(), X)

    def broken(*arguments: object) -> str:
        raise RuntimeError("no such file system")

    monkeypatch.setattr(linecache, "getline", broken)
    assert source_lines.about(found.module) == ""


def test_lines_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = captured(Net(), X)
    monkeypatch.setattr(linecache, "getline", lambda *arguments: "x" * 100_000)
    assert len(source_lines.about(found.module)) < 10_000
    monkeypatch.setattr(source_lines, "MAX_CHARS", 10)
    assert source_lines.about(found.module) == ""
