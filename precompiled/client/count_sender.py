"""Sends a process's counts to the daemon a moment after the last change, so that one that a signal ends is counted.

A server whose graphs all hit counts at its start only, and Python's exit hooks never run in it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

QUIET_S = 1.0  # without a change, before they are sent: a program's first calls count many times


class CountSender:
    """``send`` is called in a thread that lives only while counts change. Thread-safe; ``changed`` never waits."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        self.after_fork()

    def after_fork(self) -> None:
        """In a fork's child, which has none of the parent's threads."""
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
            except RuntimeError:  # at exit, where the session sends them
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
