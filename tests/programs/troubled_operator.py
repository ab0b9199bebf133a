"""An operator in whose run a program does anything: it raises, sends signals, exits (troubled_program.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ACTIONS: list[Callable[[], object]] = []  # what the next run of the operator does


@torch.library.custom_op("troubled_operator::act", mutates_args=())
def act(x: torch.Tensor) -> torch.Tensor:
    """Copies ``x``, after the actions."""
    while ACTIONS:
        ACTIONS.pop()()
    return x.clone()


@act.register_fake
def empty(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return act(grad)


act.register_autograd(backward)
