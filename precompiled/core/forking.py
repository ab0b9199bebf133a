"""Prevents forks while a background thread imports or loads.

A child inherits import locks in their locked state if another thread of the parent is importing. No thread of the child
ever releases them, so its first import of the same module hangs. So background threads do such work under ``held``, and
a fork waits for them. It waits for one load at most, which takes far less than a second once torch's compiler is
imported.
"""

from __future__ import annotations

import os
import threading

# The lock is reentrant, because a thread that forks under its own ``held`` must not deadlock.
_lock = threading.RLock()


class held:
    """A context manager that delays forks until its block ends: ``with held(): import msgspec``."""

    def __enter__(self) -> None:
        self._taken = _lock  # the lock of this process: a fork's child gets a new one
        self._taken.acquire()

    def __exit__(self, *exception: object) -> None:
        if self._taken is _lock:
            self._taken.release()


def _before() -> None:
    _lock.acquire()


def _in_parent() -> None:
    _lock.release()


def _in_child() -> None:
    global _lock  # noqa: PLW0603 - the old lock's owner may be a thread that does not exist in the child
    _lock = threading.RLock()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
