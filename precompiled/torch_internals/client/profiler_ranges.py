"""Adds ranges to a profile of ``torch.profiler``: the load of an artifact, and the first call after a swap.

If no profiler runs, a load or swap costs one check, and calls cost nothing.

Private names: torch.autograd.profiler._is_profiler_enabled. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd import profiler

Compiled = Callable[..., Any]


def load(name: str) -> AbstractContextManager[object]:
    """A range around the load of an artifact."""
    return _range(f"precompiled: load {name}")


def wrap_swapped(function: Compiled, name: str, settle: Callable[[Compiled], None]) -> Compiled:
    """Wrap ``function`` (a graph's compiled code): the profiler shows the first call of the wrapper as a range.

    After its first call, the wrapper passes ``function`` to ``settle``. If no profiler runs, returns ``function``
    itself.
    """
    if not profiler._is_profiler_enabled:
        return function

    def first(*args: object) -> object:
        with _range(f"precompiled: swap {name}"):
            result = function(*args)
        settle(function)
        return result

    return first


def _range(name: str) -> AbstractContextManager[object]:
    return torch.profiler.record_function(name) if profiler._is_profiler_enabled else nullcontext()
