"""Tests that a graph computes the same after its nested regions are inlined (nested_regions.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from precompiled.torch_internals.client.nested_regions import inline_regions

Function = Callable[..., Any]


def graph_of(function: Function, *inputs: torch.Tensor) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """Return Dynamo's graph of a function, and its inputs."""
    found: list[Any] = []

    def backend(module: torch.fx.GraphModule, given: list[torch.Tensor]) -> Function:
        found[:] = module, given
        return inline_regions(module).forward  # torch itself cannot run the case "write"

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    return found[0], found[1]


def calls(module: torch.fx.GraphModule) -> int:
    graphs = [one for one in module.modules() if isinstance(one, torch.fx.GraphModule)]
    return sum(
        "invoke_subgraph" in str(node.target) for one in graphs for node in one.graph.nodes if node.op[:4] == "call"
    )


region = torch.compiler.nested_compile_region


@region
def two(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * y, x + y


@region
def inner(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@region
def outer(x: torch.Tensor) -> torch.Tensor:
    return inner(inner(x) + 1) * 2


@region
def with_checkpoint(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: (y.cos() * y).tanh(), x, use_reentrant=False)


@region
def with_other_checkpoint(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: (y.sin() * y).exp(), x, use_reentrant=False)


@region
def writes(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1) * 2


CASES: dict[str, Function] = {
    "two outputs": lambda x: two(*two(x, x + 1)),
    "region in a region": lambda x: outer(outer(x)),
    "checkpoints in regions": lambda x: with_checkpoint(with_other_checkpoint(with_checkpoint(x))),
    "region in a checkpoint": lambda x: checkpoint(lambda y: outer(y) + inner(y), x, use_reentrant=False),
    "write": lambda x: writes(writes(x.clone())),
}


@pytest.mark.parametrize("case", CASES)
def test_inlined_graph_computes_the_same(case: str) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    module, inputs = graph_of(CASES[case], x)
    before = module.code
    assert calls(module)
    inlined = inline_regions(module)
    assert not calls(inlined) and module.code == before
    results = []
    for function in (CASES[case], lambda x: inlined(*inputs)):
        value = function(x)
        flat = value if isinstance(value, tuple) else (value,)
        results.append([*flat, *torch.autograd.grad(sum(item.sum() for item in flat), x)])
    torch.testing.assert_close(*(torch.utils._pytree.tree_leaves(result) for result in results))


def test_graph_without_regions_is_not_copied() -> None:
    module, _ = graph_of(torch.sin, torch.randn(3))
    assert inline_regions(module) is module
