"""Adds the option ``--target`` to the commands ``run`` and ``bake``, if the part made_up_cuda is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from precompiled import parts

_Function = TypeVar("_Function", bound=Callable[..., Any])


def target_option(function: _Function) -> _Function:
    """Decorator: give a command the option ``--target``. The function gets the value as its argument ``target``."""
    targets = parts.TARGETS.get()
    return function if targets is None else targets.option(function)
