"""When a graph goes over from eager to compiled: not while an eager run of it may have to run once more.

A checkpoint outside of a compiled function (``torch.utils.checkpoint``, not reentrant) runs the function again in the
backward, and takes what the second run saves for what the first one saved: the two must both be eager, or both
compiled. So an eager run inside of such a checkpoint holds the graph's swap back, for as long as the checkpoint keeps
anything. What becomes ready meanwhile is swapped then.

No torch, no I/O: ``dispatch.py`` holds, and ``torch_internals/surroundings.py`` knows what a checkpoint keeps.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable


class SafePoint:
    """That of one graph. Thread-safe."""

    def __init__(self) -> None:
        # Reentrant: a garbage collection may end a hold in the middle of anything, also in here.
        self._lock = threading.RLock()
        self._holds: set[int] = set()
        self._next = 0
        self._waiting: list[Callable[[], None]] = []

    def hold(self) -> int:
        """Hold swaps back from now on, until ``release``."""
        with self._lock:
            self._next += 1
            self._holds.add(self._next)
            return self._next

    def release(self, hold: int) -> None:
        """End a hold; idempotent. The last one does what has waited for it, in this thread."""
        with self._lock:
            self._holds.discard(hold)
            while self._waiting and not self._holds:
                self._waiting.pop(0)()

    def release_with(self, hold: int, keeper: object) -> None:
        """End it when ``keeper`` is gone."""
        weakref.finalize(keeper, self.release, hold).atexit = False

    def when_safe(self, action: Callable[[], None], otherwise: Callable[[], None]) -> None:
        """Do ``action`` now, or as soon as nothing holds it back; in that case do ``otherwise`` now.

        Both under the lock: a release in between would do ``action`` first, and ``otherwise`` would be the last word.
        """
        with self._lock:
            if self._holds:
                self._waiting.append(action)
                otherwise()
            else:
                action()
