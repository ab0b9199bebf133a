"""Watches on disk, for the next daemon: one file for each, ``<cache_dir>/watch/<id>.json``, replaced by a rename.

A file holds the registration, with all its environment variables, and what the last good capture found. Its command is
run: so it is read only where no other user can write to the file or its directory (precompiled/store/trust.py).
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


class Good(msgspec.Struct):
    """The last capture that went well. ``sources``: path -> digest; ``complete``: all of its graphs were ready."""

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
    """The id of a registration: the same for the same watch, registered again."""
    named = [registration.kind, registration.executable, registration.directory, *registration.command]
    return hashlib.sha256("\0".join(named).encode()).hexdigest()[:8]


def any_registered(cache_dir: Path) -> bool:
    """Whether there is a watch to load."""
    try:
        return any(name.endswith(".json") for name in os.listdir(cache_dir / DIRECTORY))
    except OSError:
        return False


class Registry:
    def __init__(self, cache_dir: Path) -> None:
        self._root = cache_dir / DIRECTORY

    def load(self) -> Iterator[tuple[str, Record]]:
        """All watches that can be read and trusted; the others are named in the log, and left where they are."""
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
                yield identify(record.registration), record
            except (StoreError, OSError, msgspec.MsgspecError, ValueError) as error:
                log.error("the watch in %s is left out: %s", self._root / name, error)

    def save(self, id: str, record: Record) -> None:
        """Write a watch to disk. Raises OSError or StoreError."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        trust.check_stat(os.lstat(self._root), str(self._root), directory=True)
        with durable.replacing(self._root / f"{id}.json", 0o600) as file:
            file.write(msgspec.json.encode(record))

    def remove(self, id: str) -> None:
        (self._root / f"{id}.json").unlink(missing_ok=True)
