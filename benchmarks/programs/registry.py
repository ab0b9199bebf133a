"""What a program of the table is: a function that goes through the steps of one, and yields what each step gave.

A program is written as its library's own documentation writes it: it calls ``torch.compile`` or lets the library do so,
and knows nothing of precompiled. Sizes are small and weights random; what draws random numbers in a step is switched
off, since eager and compiled code draw differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# By name: what a step computed. Names that begin with "gradient" set the noise level (models/compare.py).
Values = Mapping[str, torch.Tensor | None]
Steps = Callable[[], Iterator[Values]]
STEPS = 3


@dataclass(frozen=True)
class Program:
    """``library``: whose program it is; ``needs``: the modules that have to be there to run it."""

    name: str
    library: str
    needs: tuple[str, ...]
    steps: Steps

    @property
    def about(self) -> str:
        return (self.steps.__doc__ or "").strip().splitlines()[0].rstrip(".")


PROGRAMS: dict[str, Program] = {}

# Calls a function, by its module and name, in each process that runs the program's compiled code for it.
Ask = Callable[[str, str], Sequence[Any]]
ELSEWHERE: list[Ask] = []


def elsewhere(ask: Ask) -> None:
    """The program's compiled code runs in the processes that ``ask`` reaches, beside the one with the steps."""
    ELSEWHERE.append(ask)


def program(library: str, *needs: str) -> Callable[[Steps], Steps]:
    """Put a function into the table; its name is the program's. ``needs``: modules other than the library's own."""

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
    """The usual loop: each step's loss and gradients. ``loss_of`` calls the compiled model; ``of``: the optimizer."""
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
