"""Defines the cases with collectives inside the compiled code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from torch.nn import functional

from benchmarks.ranks.registry import Values, batch, case, trained

KIND = "collectives"


class _Summed(torch.nn.Module):
    """Each of two ranks has half of a layer's columns; ``how`` sums their results over ``group``."""

    def __init__(self, how: Any, group: Any = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, bias=False)
        self.how, self.group = how, group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = 4 * (dist.get_rank(self.group) if self.group is not None else dist.get_rank())
        part: torch.Tensor = self.layer(x[:, half % 8 : half % 8 + 4])
        total: torch.Tensor = self.how(part, self.group)
        return total


def _loss(model: Any, step: int) -> torch.Tensor:
    numbers, classes = batch(step, same=True)
    return functional.cross_entropy(model(numbers), classes)


def _added(x: torch.Tensor, group: Any) -> torch.Tensor:
    return functional_collectives.all_reduce(x, "sum", group or dist.group.WORLD)


class _Reduce(torch.autograd.Function):
    """The sum of Megatron's layers: all-reduce in the forward, identity in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@case(KIND)
def functional_all_reduce() -> Iterator[Values]:
    """A functional all_reduce in the middle of a model, without a gradient through it."""
    model = torch.nn.Linear(8, 4)
    compiled = torch.compile(lambda x: functional_collectives.all_reduce(model(x).detach(), "avg", dist.group.WORLD))
    for step in range(3):
        yield {"mean": compiled(batch(step)[0]).clone()}


@case(KIND)
def megatron() -> Iterator[Values]:
    """Megatron's autograd.Function whose forward is dist.all_reduce."""
    model = _Summed(lambda x, group: _Reduce.apply(x))
    compiled = torch.compile(model)
    yield from trained(model, lambda step: _loss(compiled, step))


@case(KIND)
def gathered() -> Iterator[Values]:
    """all_gather_tensor and reduce_scatter_tensor, with their gradients."""

    def both(x: torch.Tensor, group: Any) -> torch.Tensor:
        whole = functional_collectives.all_gather_tensor_autograd(x, 0, dist.group.WORLD)
        return functional_collectives.reduce_scatter_tensor_autograd(whole * 2, "sum", 0, dist.group.WORLD)

    model = _Summed(both)
    compiled = torch.compile(model)
    yield from trained(model, lambda step: _loss(compiled, step))


@case(KIND)
def experts() -> Iterator[Values]:
    """Mixture of experts (all_to_all)."""

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = torch.nn.Linear(8, 8)
            self.last = torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            sizes = [x.shape[0] // 2] * 2
            there = functional_collectives.all_to_all_single_autograd(x, sizes, sizes, dist.group.WORLD)
            done = functional.relu(self.own(there))
            back = functional_collectives.all_to_all_single_autograd(done, sizes, sizes, dist.group.WORLD)
            answer: torch.Tensor = self.last(back)
            return answer

    model = Experts()
    compiled = torch.compile(model)

    def loss(step: int) -> torch.Tensor:
        numbers, classes = batch(step)
        return functional.cross_entropy(compiled(numbers.requires_grad_()), classes)

    yield from trained(model, loss)


@case(KIND, ranks=4)
def pairs() -> Iterator[Values]:
    """Four ranks in two groups that compile equal graphs."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = _Summed(_added_with_gradient, groups[dist.get_rank() // 2])
    compiled = torch.compile(model)
    yield from trained(model, lambda step: _loss(compiled, step))


def _added_with_gradient(x: torch.Tensor, group: Any) -> torch.Tensor:
    whole = functional_collectives.all_gather_tensor_autograd(x, 0, group)
    return whole.view(2, *x.shape).sum(0)


@case(KIND)
def bucketed() -> Iterator[Values]:
    """Weights that are gathered before use, with collectives merged into buckets."""
    settings = {f"bucket_{which}_fx": "all" for which in ("all_gathers", "reduce_scatters", "all_reduces")}
    yield from _sharded_weights(settings)


@case(KIND)
def reordered() -> Iterator[Values]:
    """Collectives that Inductor moves beside computation (reorder_for_compute_comm_overlap)."""
    yield from _sharded_weights({"reorder_for_compute_comm_overlap": True})


def _sharded_weights(settings: dict[str, Any]) -> Iterator[Values]:
    """Like SimpleFSDP: each rank holds half of each weight's rows."""

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.halves = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(4, 8) / 3) for _ in range(4))
            self.scale = torch.nn.Parameter(torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for half in self.halves:
                whole = functional_collectives.all_gather_tensor_autograd(half, 0, dist.group.WORLD)
                x = torch.tanh(x @ whole.t()) * self.scale
            return x

    model = Layers()
    compiled = torch.compile(model, options=settings)
    yield from trained(model, lambda step: functional.cross_entropy(compiled(batch(step)[0]), batch(step)[1]))
