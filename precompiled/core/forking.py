"""Prevents forks while a background thread imports or loads.

If another thread of the parent is importing, a child inherits the import locks in their locked state. No thread of the
child ever releases these locks, so the child's first import of the same module hangs. Therefore, background threads
import and load under ``held``, and a fork waits for them. It waits for one load at most. A load takes far less than a
second once torch's compiler is imported.
"""

from __future__ import annotations

import os
import threading

# The lock is reentrant, because a thread that forks under its own ``held`` must not deadlock.
_lock = threading.RLock()


class held:
    """Delays forks until the end of a ``with`` block, for example ``with held(): import msgspec``."""

    def __enter__(self) -> None:
        self._taken = _lock  # keep this lock, because a fork's child replaces ``_lock``
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
