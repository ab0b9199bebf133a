"""Stores watches on disk for the next daemon: one file per watch, ``<cache_dir>/watch/<id>.json``, replaced by rename.

A file holds the registration, with its environment variables, and the last good capture's results. A capture runs the
registered command, so the watcher loads a file only if no other user can write to it or its directory (store/trust.py).
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from precompiled import wire
from precompiled.core import durable
from precompiled.core.errors import StoreError
from precompiled.store import trust

log = logging.getLogger("precompiled.watch")

DIRECTORY = "watch"
MAX_BYTES = 16 << 20
MAX_WATCHES = 64
MAX_PATH_BYTES = 4095  # the kernel's limit
ASIDE = ".set-aside"


class Good(msgspec.Struct):
    """The last successful capture. ``sources`` maps paths to digests. ``complete``: no graph was still compiling."""

    sources: dict[str, str]
    graphs: list[wire.WatchedGraph]
    fake: bool
    note: str = ""
    complete: bool = False
    edited: str = ""
    edited_at: float = 0.0
    packages: int = 0


class Record(msgspec.Struct):
    registration: wire.Registration
    good: Good | None = None


def identify(registration: wire.Registration) -> str:
    """The id of a registration. Registering the same watch again gives the same id."""
    named = [registration.kind, registration.executable, registration.directory, *registration.command]
    return hashlib.sha256("\0".join(named).encode()).hexdigest()[:8]


def problem_of(registration: wire.Registration) -> str:
    """Return why a registration cannot be captured; "" if it can. Reads no files."""
    texts = [*registration.command, *registration.files, *registration.variables, *registration.variables.values()]
    if not registration.command or not all(registration.command[:1]):
        return "the command is empty"
    if registration.kind == "entry" and len(registration.command) != 1:
        return f"an entry point has one name, not {len(registration.command)}"
    for what, path in (
        ("interpreter", registration.executable),
        ("directory", registration.directory),
        ("store", registration.store),
    ):
        if not os.path.isabs(path) or "\0" in path:
            return f"the {what} {path[:200]!r} is not an absolute path"
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            return f"the {what} has a path of {len(os.fsencode(path))} bytes, over the limit of {MAX_PATH_BYTES}"
    if any("\0" in text for text in texts):
        return "the command, a file or a variable contains a NUL"
    if not all(name and "=" not in name for name in registration.variables):
        return "a variable has no name, or a name with ="
    counts = registration.memory_limit_bytes, registration.steps
    if not 0 < registration.time_limit_s < float("inf") or min(counts) < 0:
        return "a limit is negative, or is not a number"
    return ""


def any_registered(cache_dir: Path) -> bool:
    try:
        return any(name.endswith(".json") for name in os.listdir(cache_dir / DIRECTORY))
    except OSError:
        return False


class Registry:
    def __init__(self, cache_dir: Path) -> None:
        self._root = cache_dir / DIRECTORY

    def load(self) -> Iterator[tuple[str, Record]]:
        """The first MAX_WATCHES watches that can be read and trusted. Others are logged, and their files stay in place.

        A watch that cannot be captured (``problem_of``) is set aside.
        """
        try:
            names = sorted(name for name in os.listdir(self._root) if name.endswith(".json"))
        except FileNotFoundError:
            return
        except OSError as error:
            log.error("the registered watches cannot be read: %s", error)
            return
        for name in names[:MAX_WATCHES]:
            try:
                with trust.open_directory(self._root) as fd:
                    data = trust.read_file(name, fd, MAX_BYTES, shown=str(self._root / name))
                record = msgspec.json.decode(data, type=Record)
            except (StoreError, OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
                log.error("the watch in %s is ignored: %s", self._root / name, error)
                continue
            if problem := problem_of(record.registration):
                self.set_aside(name.removesuffix(".json"), problem)
                continue
            yield identify(record.registration), record

    def set_aside(self, id: str, why: str) -> None:
        """Rename a watch's file, so that no later start loads it."""
        path = self._root / f"{id}.json"
        log.error("the watch in %s is set aside as %s%s: %s", path, path.name, ASIDE, why)
        try:
            path.rename(path.with_name(path.name + ASIDE))
        except OSError as error:
            log.error("%s cannot be renamed: %s", path, error)

    def save(self, id: str, record: Record) -> None:
        """Write a watch to disk. Raises OSError or StoreError."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        trust.check_stat(os.lstat(self._root), str(self._root), directory=True)
        with durable.replacing(self._root / f"{id}.json", 0o600) as file:
            file.write(msgspec.json.encode(record))

    def remove(self, id: str) -> None:
        (self._root / f"{id}.json").unlink(missing_ok=True)
