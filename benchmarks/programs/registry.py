"""Registers programs. A program is a function that yields the results of each of its steps.

A program is written as in its library's documentation. The program calls ``torch.compile`` or lets the library do so,
and does not mention precompiled. Sizes are small and weights random. A step draws no random numbers, because eager and
compiled code draw different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# Results of a step, by name. Tensors whose names begin with "gradient" set the noise level (models/compare.py).
Values = Mapping[str, torch.Tensor | None]
Steps = Callable[[], Iterator[Values]]
STEPS = 3


@dataclass(frozen=True)
class Program:
    """``library``: the library that the program uses. ``needs``: the modules that it imports."""

    name: str
    library: str
    needs: tuple[str, ...]
    steps: Steps

    @property
    def about(self) -> str:
        return (self.steps.__doc__ or "").strip().splitlines()[0].rstrip(".")


PROGRAMS: dict[str, Program] = {}

# Takes a module and the name of a function in it. Calls this function in each other process that runs the program's
# compiled code, and returns the results.
Ask = Callable[[str, str], Sequence[Any]]
ELSEWHERE: list[Ask] = []


def elsewhere(ask: Ask) -> None:
    """Register ``ask``, which reaches the other processes that run the program's compiled code."""
    ELSEWHERE.append(ask)


def program(library: str, *needs: str) -> Callable[[Steps], Steps]:
    """Register a function as a program under the function's name. ``needs``: its imports besides ``library``."""

    def register(steps: Steps) -> Steps:
        PROGRAMS[steps.__name__] = Program(steps.__name__, library, (library, *needs), steps)
        return steps

    return register


def trained(
    model: torch.nn.Module,
    loss_of: Callable[[], torch.Tensor],
    *,
    of: Callable[[torch.nn.Module], torch.optim.Optimizer] | None = None,
    steps: int = STEPS,
) -> Iterator[dict[str, Any]]:
    """Train. Yield each step's loss and gradients. ``loss_of`` calls the compiled model; ``of`` makes the optimizer."""
    optimizer = of(model) if of else torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        gradients = {
            f"gradient of {name}": None if parameter.grad is None else parameter.grad.detach().clone()
            for name, parameter in model.named_parameters()
        }
        optimizer.step()
        yield {"loss": loss.detach().clone(), **gradients}
