"""Checks rows with random numbers, which differ between a kernel and eager. Three checks replace the comparison of
values: the distribution is right, two calls differ, and a backward uses its forward's mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

NUMBER = 8192
SIGMAS = 6.0  # tolerance of a mean or variance; a correct one exceeds it with a chance of 1e-9


@dataclass(frozen=True)
class Drawn:
    """``function`` multiplies its input by random numbers. If all elements of the input are 1, the output and the
    gradient are these numbers.
    """

    function: Callable[[torch.Tensor], torch.Tensor]
    mean: float
    variance: float
    least: float
    most: float


RANDOM = {
    "rand": Drawn(lambda x: torch.rand_like(x) * x, 0.5, 1 / 12, 0.0, 1.0),
    "randn": Drawn(lambda x: torch.randn_like(x) * x, 0.0, 1.0, -8.0, 8.0),
    "randint": Drawn(lambda x: torch.randint_like(x, 0, 7) * x, 3.0, 4.0, 0.0, 6.0),
    "dropout": Drawn(lambda x: functional.dropout(x, 0.25), 1.0, 1 / 3, 0.0, 4 / 3),
}


def draw(function: Callable[[torch.Tensor], torch.Tensor]) -> list[torch.Tensor]:
    """Call the function twice; return the outputs and gradients."""
    found = []
    for _ in range(2):
        x = torch.ones(NUMBER, device="cuda", requires_grad=True)
        output = function(x)
        (gradient,) = torch.autograd.grad(output.sum(), x)
        found += [output.detach().cpu().double(), gradient.cpu().double()]
    return found


def odd(expected: Drawn, found: list[torch.Tensor]) -> list[str]:
    """Return the properties that the results of ``draw`` violate."""
    first, gradient, second, _ = found
    odds = []
    if not torch.isfinite(first).all() or first.min() < expected.least - 1e-6 or first.max() > expected.most + 1e-6:
        odds.append(f"numbers from {first.min():g} to {first.max():g}")
    if abs(float(first.mean()) - expected.mean) > SIGMAS * (expected.variance / NUMBER) ** 0.5:
        odds.append(f"their mean is {first.mean():g}, and not {expected.mean:g}")
    if abs(float(first.var()) / expected.variance - 1.0) > SIGMAS * (2.0 / NUMBER) ** 0.5:
        odds.append(f"their variance is {first.var():g}, and not {expected.variance:g}")
    if torch.equal(first, second):
        odds.append("two calls draw the same numbers")
    if not torch.allclose(gradient, first):
        odds.append("the backward has other numbers than the forward")
    return odds
