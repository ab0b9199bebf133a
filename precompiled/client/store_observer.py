"""watchdog's hints that a name has appeared in the store: one inotify watch on a flat directory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from precompiled.core import forking

log = logging.getLogger("precompiled.client.store_observer")


def _is_news(record: logging.LogRecord) -> bool:
    return "called when the thread is inactive" not in str(record.msg)


class StoreObserver:
    """One inotify watch on the store, through watchdog. Not ``active`` without a directory, or without a free watch."""

    def __init__(self, on_event: Callable[[], None]) -> None:
        self._on_event = on_event
        self._observer: Any = None
        self._gave_up = False
        self.active = False

    def observe(self, directory: Any) -> None:
        """Call ``on_event`` for new names in ``directory`` from now on, if it is there; idempotent."""
        if self.active or self._gave_up or not directory.is_dir():
            return
        with forking.held():
            from watchdog.events import FileSystemEvent, FileSystemEventHandler
            from watchdog.observers import Observer
        # An event may come while the observer is stopped; watchdog logs that as an error, on the program's stderr.
        logging.getLogger("watchdog.observers.inotify").addFilter(_is_news)

        on_event = self._on_event

        class Handler(FileSystemEventHandler):
            def on_any_event(self, event: FileSystemEvent) -> None:
                if event.event_type in ("created", "moved"):
                    on_event()

        observer: Any = None
        try:
            observer = Observer()  # of watchdog 7 it opens its inotify instance, and starts a thread
            observer.schedule(Handler(), str(directory), recursive=False)
            observer.start()
        except (OSError, RuntimeError) as error:
            # ENOSPC: max_user_watches; EMFILE: max_user_instances. `precompiled doctor` names both.
            log.info("no inotify watch on %s (%s): it is looked at more often", directory, error)
            self._gave_up = True
            if observer is not None:
                observer.stop()
            return
        self._observer = observer
        self.active = True

    def close(self) -> None:
        if self._observer is not None:
            self._observer.stop()
