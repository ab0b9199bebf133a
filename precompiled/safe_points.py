"""When calls may go over from eager to compiled: not while something that ran eager may have to run once more.

A checkpoint outside of a compiled function (``torch.utils.checkpoint``, not reentrant) runs the function again in the
backward, and takes what that run saves for what the first one saved. Both must be eager, or both compiled. Checkpoints
do this by hooks on saved tensors, and other users of such hooks may do the same. So an eager run under such hooks holds
all swaps back, until its backward is through or its graph is gone; what becomes ready meanwhile is swapped then.

No torch, no I/O: ``dispatch.py`` asks for holds, ``torch_internals/autograd_edges.py`` releases them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Hold:
    """An eager run that may be repeated. Ends with ``release``, or with the last reference to it."""

    def __init__(self, points: SafePoints) -> None:
        self._points: SafePoints | None = points

    def release(self) -> None:
        points, self._points = self._points, None
        if points is not None:
            points._released()

    __del__ = release


class SafePoints:
    """Those of one process. Thread-safe."""

    def __init__(self) -> None:
        self.after_fork()
        self._holds = 0
        self._waiting: list[Callable[[], None]] = []

    def after_fork(self) -> None:
        """In a fork's child: a lock that a thread of the parent may hold."""
        # Reentrant: a garbage collection may release a hold in the middle of anything, also in here.
        self._lock = threading.RLock()

    def hold(self) -> Hold:
        """Hold swaps back from now on."""
        with self._lock:
            self._holds += 1
        return Hold(self)

    def when_safe(self, action: Callable[[], None], at_once: Callable[[], bool]) -> None:
        """Do it now, or as soon as nothing holds it back, in the thread that releases the last hold.

        ``at_once``: whether it may come in spite of holds (a graph of which no eager run was held).
        """
        with self._lock:
            if self._holds and not at_once():
                self._waiting.append(action)
                return
            action()

    def _released(self) -> None:
        with self._lock:
            self._holds -= 1
            while self._waiting and not self._holds:
                self._waiting.pop(0)()
