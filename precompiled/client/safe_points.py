"""Delays swaps while an eager run of a function may have to be repeated.

A non-reentrant ``torch.utils.checkpoint`` outside a compiled function runs the function again in the backward, and
expects the second run to save the same tensors as the first. So both runs must be eager, or both compiled. Therefore an
eager run in such a checkpoint holds swaps back until the checkpoint frees its saved tensors. At the end of the hold,
this file swaps in the artifacts that were loaded meanwhile.

Dynamo may have several graphs for a function, and first tries the graph that it used last. So the second run may use a
different graph than the first. Therefore a hold applies to all graphs of a function. But each hold belongs to one
checkpoint. If a checkpoint's first run was compiled, its second run must be compiled too, even during another
checkpoint's hold.

This file needs no torch and does no I/O. ``dispatch.py`` uses it; torch_internals/eager/enclosing_regions.py finds the
checkpoints.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import CodeType


class SafePoint:
    """The safe point of one function's graphs. Thread-safe.

    A *keeper* is an object that belongs to a checkpoint. Python frees the keeper when no second run can follow. This
    ends the keeper's hold.
    """

    def __init__(self) -> None:
        # The lock is reentrant, because a garbage collection may end a hold inside these methods.
        self._lock = threading.RLock()
        self._keepers: set[int] = set()  # ids of keepers that are not freed
        self._waiting: list[Callable[[], None]] = []

    def hold(self, keeper: object) -> bool:
        """Hold swaps back until ``keeper`` is freed or released. Returns false if ``keeper`` already holds swaps
        back.
        """
        with self._lock:
            if id(keeper) in self._keepers:
                return False
            self._keepers.add(id(keeper))
            weakref.finalize(keeper, self._gone, id(keeper)).atexit = False
            return True

    def release(self, keeper: object) -> None:
        """End the hold of ``keeper``; idempotent. If no other keeper holds swaps back, run the waiting actions in this
        thread.
        """
        self._gone(id(keeper))

    def is_held(self, keeper: object | None = None) -> bool:
        """Whether ``keeper`` holds swaps back; without an argument, whether any keeper does."""
        with self._lock:
            return bool(self._keepers) if keeper is None else id(keeper) in self._keepers

    def _gone(self, keeper: int) -> None:
        with self._lock:
            self._keepers.discard(keeper)
            while self._waiting and not self._keepers:
                self._waiting.pop(0)()

    def when_safe(self, action: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """If no keeper holds swaps back, run ``action`` now. Otherwise run ``otherwise`` now, and ``action`` when the
        last keeper releases its hold.

        Both functions run under the lock. Without the lock, ``action`` could run before ``otherwise``, and the message
        that ``otherwise`` sets would stay.
        """
        with self._lock:
            if self._keepers:
                self._waiting.append(action)
                otherwise()
            else:
                action()

    def after_fork(self) -> None:
        self._lock = threading.RLock()  # in a child, the thread that owns the old lock may not exist


class SafePoints:
    """The safe points of a process, by function. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: weakref.WeakKeyDictionary[CodeType, SafePoint] = weakref.WeakKeyDictionary()

    def of(self, code: CodeType | None) -> SafePoint:
        """Return the safe point of the graphs that Dynamo traces from ``code``. Without ``code``, it is a new one."""
        if code is None:
            return SafePoint()
        with self._lock:
            return self._of.setdefault(code, SafePoint())

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        for point in list(self._of.values()):
            point.after_fork()
