"""Publishes recorded entries in a background thread, so that no call waits for a disk."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from precompiled.core.errors import StoreError

log = logging.getLogger("precompiled.package")


class Publisher:
    """Writes entries in a thread that ends once all entries are written.

    The interpreter waits for this thread at exit.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: list[tuple[Callable[[], object], Callable[[BaseException], None]]] = []
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def publish(self, write: Callable[[], object], failed: Callable[[BaseException], None]) -> None:
        """Call ``write`` soon, in the thread. If ``write`` raises, call ``failed`` with the exception.

        Raises StoreError if no thread can start.
        """
        with self._lock:
            self._waiting.append((write, failed))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="precompiled-packages", daemon=False)
                try:
                    thread.start()
                except RuntimeError as error:  # the thread limit is reached, or Python is shutting down
                    self._waiting.clear()
                    raise StoreError(
                        f"no thread can be started to write it: {error}", code="package-unwritable"
                    ) from error
                self._thread = thread

    def flush(self, timeout: float | None) -> bool:
        """Wait until all entries are written. Returns false after ``timeout`` seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: self._thread is None, timeout)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    self._lock.notify_all()
                    return
                write, failed = self._waiting.pop(0)
            try:
                _write(write, failed)
            except BaseException:
                log.warning("packages: an entry is not written, and its reason is not counted", exc_info=True)

    def _after_fork(self) -> None:
        self._lock = threading.Condition()
        self._waiting, self._thread = [], None  # the parent writes its queue


def _write(write: Callable[[], object], failed: Callable[[BaseException], None]) -> None:
    try:
        write()
    except BaseException as error:  # noqa: BLE001 - a full disk, or an object that cannot be pickled
        failed(error)
