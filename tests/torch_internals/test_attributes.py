"""Tests that tensors that a graph holds as attributes become its last inputs."""

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
    """Returns an optimizer after its first step, which creates the optimizer's state."""
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, foreach=False)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return optimizer


def graph_of(optimizer: torch.optim.Optimizer, lift: Callable[[GraphModule], Any]) -> tuple[GraphModule, Any, Any]:
    """Returns the graph of an optimizer's step, the result of ``lift`` for the graph, and the graph's arguments.

    Dynamo calls ``lift`` through a backend, during the trace.
    """
    torch._dynamo.reset()
    found: list[tuple[GraphModule, Any, Any]] = []

    def backend(module: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        found.append((module, lift(module), inputs))
        return lambda *args: ()

    torch.compile(optimizer.step, backend=backend)()
    (graph,) = found
    return graph


def test_lifted_graph_works_on_the_tensors_of_the_original() -> None:
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


def test_lifted_graph_does_not_keep_the_tensors_alive() -> None:
    optimizer = adam()
    average = weakref.ref(next(iter(optimizer.state.values()))["exp_avg"])
    _module, plain, _inputs = graph_of(optimizer, graph_lowering.plain)
    assert average() is not None
    del optimizer, _inputs
    gc.collect()
    assert plain.held == [] and average() is None


def test_key_depends_on_metadata_of_held_tensors_not_on_their_values() -> None:
    def key_of(optimizer: torch.optim.Optimizer) -> str:
        captured = graph_of(optimizer, lambda module: capture.capture(graph_lowering.plain(module).module, {}))[1]
        return key.key(captured.sections)

    assert key_of(adam()) == key_of(adam(seed=1))
    assert key_of(adam()) != key_of(adam(lr=0.2))


def test_graph_without_held_tensors_is_unchanged() -> None:
    module = torch.fx.symbolic_trace(torch.nn.ReLU())
    assert graph_attributes.lift_attributes(module) == (module, [])


def test_held_tensor_without_dynamo_metadata_is_refused() -> None:
    class Holding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.held

    with pytest.raises(Bypass) as refused:
        graph_attributes.lift_attributes(torch.fx.symbolic_trace(Holding()))
    assert refused.value.code == "graph-attribute"
