"""Reports that a source may have changed: inotify (through watchdog) on the sources' directories, otherwise polling.

An event is only a hint: files.py finds the changed files. Directories are observed because an editor that saves by
rename leaves an inotify watch on the old file. Events can be lost (a full queue, a replaced directory), so the watcher
also checks without them: every SWEEP_S, or every POLL_S if events are known to be missing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from precompiled.core import filesystems
from precompiled.core.words import format_count

log = logging.getLogger("precompiled.watch")

SWEEP_S = 1.0
POLL_S = 0.5
RETRY_S = 10.0  # seconds between two attempts to get inotify back


class Hints:
    """Calls ``on_hint`` when an observed path may have changed, in a thread of the library watchdog."""

    def __init__(self, on_hint: Callable[[], None]) -> None:
        self._on_hint = on_hint
        self._observer: Any = None
        # maps a directory to its inode and watchdog's watch
        self._observed: dict[str, tuple[tuple[int, int], object]] = {}
        self._paths: frozenset[str] = frozenset()
        self._gone: set[str] = set()  # deleted or moved directories; a new one may get the same inode
        self._retry_at = 0.0
        self.problem = ""  # why files are polled; "": events arrive
        _Overflow(self._on_hint).install()

    @property
    def interval_s(self) -> float:
        """Seconds between two checks without a hint."""
        return POLL_S if self.problem else SWEEP_S

    def observe(self, paths: set[str], now: float) -> None:
        """Begin to report changes of these files.

        Call this at every check, because a directory may have been replaced.
        """
        self._paths = frozenset(paths)
        wanted = {}
        problem = ""
        for directory in {os.path.dirname(path) for path in paths}:
            try:
                status = os.stat(directory)
            except OSError:
                continue  # the directory does not exist; until it is back, only the regular checks find changes
            if filesystems.is_shared(directory):
                problem = f"{directory} is on a network file system"
                continue
            wanted[directory] = (status.st_dev, status.st_ino)
        gone, self._gone = self._gone, set()
        for directory in [
            name for name, (inode, _) in self._observed.items() if wanted.get(name) != inode or name in gone
        ]:
            _, watch = self._observed.pop(directory)
            self._drop(watch)
        missing = wanted.keys() - self._observed.keys()
        if missing and (not self.problem or now >= self._retry_at):
            problem = self._add(missing, wanted) or problem
            if problem:
                self._retry_at = now + RETRY_S
        elif missing:
            problem = self.problem
        if problem != self.problem:
            log.warning("%s", problem or "inotify is back")
        self.problem = problem

    def close(self) -> None:
        if self._observer is not None:
            self._observer.stop()
            self._observer.join(2.0)

    def _add(self, directories: set[str], inodes: dict[str, tuple[int, int]]) -> str:
        handler = _Handler(self)
        for directory in sorted(directories):
            try:
                if self._observer is None:
                    self._observer = _started()
                self._observed[directory] = (inodes[directory], self._observer.schedule(handler, directory))
            except OSError as error:
                # ENOSPC: the limit max_user_watches is reached. EMFILE: the limit max_user_instances or of descriptors
                # is reached.
                left = len(directories - self._observed.keys())
                return (
                    f"{format_count(left, 'directory of sources has', 'directories of sources have')} no inotify watch "
                    f"({error.strerror or error}): the watcher checks files every {POLL_S} s. Raise "
                    "fs.inotify.max_user_watches and fs.inotify.max_user_instances"
                )
            except Exception as error:  # an error in watchdog: the regular checks go on without events
                log.exception("no watch on %s", directory)
                return f"watchdog does not watch {directory} ({error}): the watcher checks files every {POLL_S} s"
        return ""

    def _drop(self, watch: object) -> None:
        try:
            self._observer.unschedule(watch)
        except (KeyError, OSError):
            pass  # the inotify watch ended with its directory

    def _saw(self, event: FileSystemEvent) -> None:
        """Handle an event, in a thread of watchdog."""
        if event.event_type in ("opened", "closed_no_write"):
            return  # our own reads cause such events
        if event.is_directory and event.event_type in ("deleted", "moved"):
            self._gone = {*self._gone, str(event.src_path)}
        if event.is_directory or str(event.src_path) in self._paths or str(event.dest_path or "") in self._paths:
            self._on_hint()


def _started() -> object:
    observer = Observer()
    try:
        observer.start()
    except RuntimeError:  # no thread can be started: without stop(), watchdog 7 would leak descriptors at each attempt
        observer.stop()
        raise
    return observer


class _Handler(FileSystemEventHandler):
    def __init__(self, hints: Hints) -> None:
        self._hints = hints

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._hints._saw(event)


class _Overflow(logging.Handler):
    """Calls ``on_hint`` when the kernel's event queue has overflowed, which watchdog 7 only logs (watchdog#654)."""

    def __init__(self, on_hint: Callable[[], None]) -> None:
        super().__init__(logging.WARNING)
        self._on_hint = on_hint

    def install(self) -> None:
        logging.getLogger("watchdog").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "overflow" in record.getMessage().lower():
            self._on_hint()
