"""An operator that raises, sends signals or exits when a program runs it (troubled_program.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


def actions() -> list[Callable[[], object]]:
    """What the next run of the operator does. The list is not in this module, because the key of a graph covers the
    values in the module of an operator.
    """
    if not hasattr(sys, "troubled_actions"):
        sys.troubled_actions = []  # type: ignore[attr-defined]
    return sys.troubled_actions  # type: ignore[attr-defined,no-any-return]


@torch.library.custom_op("troubled_operator::act", mutates_args=())
def act(x: torch.Tensor) -> torch.Tensor:
    """Copies ``x``, after the actions."""
    while actions():
        actions().pop()()
    return x.clone()


@act.register_fake
def empty(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return act(grad)


act.register_autograd(backward)
