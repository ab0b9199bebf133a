"""Sends a process's counts to the daemon a moment after the last change.

Counts are sent before the process ends, because no exit hook runs if a signal ends the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# The thread sends counts after this many seconds without a change, because a program's first calls change them often.
QUIET_S = 1.0


class CountSender:
    """Calls ``send`` in a thread that ends once the counts are sent. Thread-safe; ``changed`` never blocks."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self.after_fork()

    def after_fork(self) -> None:
        """Reset the state in a fork's child, in which the parent's thread does not run."""
        self._lock = threading.Lock()
        self._changes = 0
        self._runs = False

    def changed(self) -> None:
        with self._lock:
            self._changes += 1
            if self._runs:
                return
            try:
                threading.Thread(target=self._work, name="precompiled-counts", daemon=True).start()
            except RuntimeError:  # the interpreter is shutting down: the session sends the counts at exit
                return
            self._runs = True

    def _work(self) -> None:
        while True:
            with self._lock:
                seen = self._changes
            time.sleep(QUIET_S)
            with self._lock:
                if self._changes == seen:
                    self._runs = False
                    break
        self._send()
