"""Registers cases. A case is a function that each rank runs, and that yields the results of each step.

A case is written as in torch's documentation, calls ``torch.compile``, and does not mention precompiled. A step draws
no random numbers, because eager and compiled code draw different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

# Results of a step on this rank, by name. Tensors whose names begin with "gradient" set the noise level
# (models/compare.py).
Values = Mapping[str, torch.Tensor | None]
Steps = Callable[[], Iterator[Values]]
STEPS = 3


@dataclass(frozen=True)
class Case:
    """``kind``: how the work is divided. ``ranks``: the number of ranks."""

    name: str
    kind: str
    ranks: int
    steps: Steps
    half: bool = False  # half precision, so norms of whole tensors are compared

    @property
    def about(self) -> str:
        return (self.steps.__doc__ or "").strip().splitlines()[0].rstrip(".")


CASES: dict[str, Case] = {}


def case(kind: str, ranks: int = 2, *, half: bool = False) -> Callable[[Steps], Steps]:
    """Register a function as a case under the function's name."""

    def register(steps: Steps) -> Steps:
        CASES[steps.__name__] = Case(steps.__name__, kind, ranks, steps, half)
        return steps

    return register


class Block(torch.nn.Module):
    """A layer with a residual connection, like a transformer's."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Net(torch.nn.Module):
    """Classifies eight numbers into four classes."""

    def __init__(self, width: int = 16, blocks: int = 2) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(blocks))
        self.last = torch.nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def batch(step: int, *, same: bool = False, rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs (rows, 8) and classes (rows,) of a step. Each rank gets its own batch, unless ``same``."""
    generator = torch.Generator().manual_seed(1000 * step + (0 if same else 1 + dist.get_rank()))
    return torch.randn(rows, 8, generator=generator), torch.randint(4, (rows,), generator=generator)


def loss_of(model: Callable[..., torch.Tensor], step: int, *, same: bool = False) -> torch.Tensor:
    numbers, classes = batch(step, same=same)
    return functional.cross_entropy(model(numbers), classes)


def trained(
    model: torch.nn.Module,
    loss: Callable[[int], torch.Tensor],
    *,
    optimizer: torch.optim.Optimizer | None = None,
) -> Iterator[dict[str, Any]]:
    """Train and yield this rank's loss and gradients of each step. ``loss`` calls the compiled code."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        value = loss(step)
        value.backward()
        found = {"loss": local(value), **gradients(model)}
        optimizer.step()
        yield found


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    return {
        f"gradient of {name}": None if parameter.grad is None else local(parameter.grad)
        for name, parameter in model.named_parameters()
    }


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor, which may be a DTensor."""
    from torch.distributed.tensor import DTensor

    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()
