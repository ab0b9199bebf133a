"""When a graph goes over from eager to compiled: not while an eager run of it may have to run once more.

A checkpoint outside of a compiled function (``torch.utils.checkpoint``, not reentrant) runs the function again in the
backward, and takes what the second run saves for what the first one saved: the two must both be eager, or both
compiled. So an eager run inside of such a checkpoint holds swaps back, for as long as the checkpoint keeps anything.
What becomes ready meanwhile is swapped then.

Dynamo may have several graphs for one function, and asks the one first that it used last: the second run is not always
the first one's graph. So a hold is about all graphs of a function, and remembers for which checkpoint it is: the second
run of another checkpoint has a compiled first one.

No torch, no I/O: ``dispatch.py`` holds them, and torch_internals/eager/enclosing_regions.py has the checkpoint's part.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from types import CodeType


class SafePoint:
    """That of one function's graphs. Thread-safe. A *keeper* is what a checkpoint keeps for its second run."""

    def __init__(self) -> None:
        # Reentrant: a garbage collection may end a hold in the middle of anything, also in here.
        self._lock = threading.RLock()
        self._keepers: set[int] = set()  # by identity: each is removed when it is gone
        self._waiting: list[Callable[[], None]] = []

    def hold(self, keeper: object) -> bool:
        """Hold swaps back until ``keeper`` is gone, or ``release``; whether it had not held them before."""
        with self._lock:
            if id(keeper) in self._keepers:
                return False
            self._keepers.add(id(keeper))
            weakref.finalize(keeper, self._gone, id(keeper)).atexit = False
            return True

    def release(self, keeper: object) -> None:
        """End its hold; idempotent. The last one does what has waited for it, in this thread."""
        self._gone(id(keeper))

    def is_held(self, keeper: object | None = None) -> bool:
        """Whether ``keeper`` holds swaps back, or any does."""
        with self._lock:
            return bool(self._keepers) if keeper is None else id(keeper) in self._keepers

    def _gone(self, keeper: int) -> None:
        with self._lock:
            self._keepers.discard(keeper)
            while self._waiting and not self._keepers:
                self._waiting.pop(0)()

    def when_safe(self, action: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Do ``action`` now, or as soon as nothing holds it back; in that case do ``otherwise`` now.

        Both under the lock: otherwise a release in between could do ``action`` before ``otherwise``, whose message
        would stay.
        """
        with self._lock:
            if self._keepers:
                self._waiting.append(action)
                otherwise()
            else:
                action()

    def after_fork(self) -> None:
        self._lock = threading.RLock()  # its owner may be a thread that does not exist here


class SafePoints:
    """Those of a process, by function. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: weakref.WeakKeyDictionary[CodeType, SafePoint] = weakref.WeakKeyDictionary()

    def of(self, code: CodeType | None) -> SafePoint:
        """That of the graphs that Dynamo makes of ``code``; one of its own for a graph of unknown code."""
        if code is None:
            return SafePoint()
        with self._lock:
            return self._of.setdefault(code, SafePoint())

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        for point in list(self._of.values()):
            point.after_fork()
