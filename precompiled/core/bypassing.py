"""Tracks whether the running code is in a `with precompiled.bypassed():` block.

A context variable holds the state, so a block applies only to its own thread or asyncio task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_active: ContextVar[bool] = ContextVar("precompiled.bypassed", default=False)


@contextmanager
def bypassed() -> Iterator[None]:
    before = _is_active.get()
    _is_active.set(True)
    try:
        yield
    finally:
        # ``ContextVar.reset`` would raise if another task ends the block (an async fixture of pytest, for example).
        _is_active.set(before)


def is_active() -> bool:
    return _is_active.get()
