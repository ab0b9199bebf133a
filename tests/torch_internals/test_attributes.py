"""Tensors that a graph holds are its last inputs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import GraphModule

from precompiled.core.errors import Bypass
from precompiled.graph import capture, key
from precompiled.torch_internals.client import graph_attributes, graph_lowering


def adam(lr: float = 0.1, seed: int = 0) -> torch.optim.Optimizer:
    """After its first step, when it has its state."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, foreach=False)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return optimizer


def graph_of(optimizer: torch.optim.Optimizer, lift: Callable[[GraphModule], Any]) -> tuple[GraphModule, Any, Any]:
    """The graph of a step, what ``lift`` makes of it while Dynamo is at the frame, and the graph's arguments."""
    torch._dynamo.reset()
    found: list[tuple[GraphModule, Any, Any]] = []

    def backend(module: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append((module, lift(module), inputs))
        return lambda *args: ()

    torch.compile(optimizer.step, backend=backend)()
    (graph,) = found
    return graph


def test_it_works_on_the_tensors_that_the_graph_holds() -> None:
    optimizer = adam()
    _module, plain, inputs = graph_of(optimizer, graph_lowering.plain)
    assert len(plain.held) == 8, "two parameters, each with a step and two averages"
    assert not [node for node in plain.module.graph.nodes if node.op == "get_attr"]
    assert not list(plain.module.parameters()) and not list(plain.module.buffers())
    before, copies = ([tensor.detach().clone() for tensor in plain.held] for _ in range(2))
    with torch.no_grad():
        plain.module(*inputs, *copies)
        assert all(map(torch.equal, plain.held, before))
        plain.taking_all(plain.module)(*inputs)
    assert all(map(torch.equal, plain.held, copies)) and not any(map(torch.equal, plain.held, before))


def test_the_tensors_are_let_go_with_the_optimizer() -> None:
    optimizer = adam()
    average = weakref.ref(next(iter(optimizer.state.values()))["exp_avg"])
    _module, plain, _inputs = graph_of(optimizer, graph_lowering.plain)
    assert average() is not None
    del optimizer, _inputs
    gc.collect()
    assert plain.held == [] and average() is None


def test_the_key_has_nothing_of_the_tensors_but_what_they_are() -> None:
    def key_of(optimizer: torch.optim.Optimizer) -> str:
        captured = graph_of(optimizer, lambda module: capture.capture(graph_lowering.plain(module).module, {}))[1]
        return key.key(captured.sections)

    assert key_of(adam()) == key_of(adam(seed=1))
    assert key_of(adam()) != key_of(adam(lr=0.2))


def test_a_graph_that_holds_none_is_itself() -> None:
    module = torch.fx.symbolic_trace(torch.nn.ReLU())
    assert graph_attributes.lifted(module) == (module, [])


def test_one_of_which_dynamo_says_nothing_is_refused() -> None:
    class Holding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.held

    with pytest.raises(Bypass) as refused:
        graph_attributes.lifted(torch.fx.symbolic_trace(Holding()))
    assert refused.value.code == "graph-attribute"
