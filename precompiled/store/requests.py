"""Records a helper's requests to its remote, for display by `precompiled tools trace`.

::

    requests/<began>-<pid>.jsonl

Each helper has its own file, and begins a new file when the file is full. The last KEPT files are kept. Each line is a
JSON array with the fields of a RemoteRequest.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from precompiled.core.errors import StoreError
from precompiled.store import lines, trust

log = logging.getLogger("precompiled")

REQUESTS = "requests"
KEPT = 8
ROOM = 4096  # bytes that one line may need


class RemoteRequest(NamedTuple):
    """One request to the remote.

    - ``what``: "list", "read", "write", "create" or "remove"
    - ``path``: relative to the remote's URL
    - ``began``: seconds since the epoch
    - ``bytes``: read or written
    - ``problem``: the code of the error, or ""
    """

    what: str
    path: str
    began: float
    seconds: float
    bytes: int
    problem: str

    @property
    def ended(self) -> float:
        return self.began + self.seconds


class RequestRecord:
    """The requests of this process for one store. Thread-safe. Raises no errors, because no request depends on it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lines: lines.AppendedFile | None = None
        self._lock = threading.Lock()

    def note(self, request: RemoteRequest) -> None:
        with self._lock:
            try:
                if self._lines is None or self._lines.left < ROOM or not self._lines.file.exists():
                    parent = lines.folder(self._root, REQUESTS)
                    self._lines = lines.AppendedFile(parent / f"{time.time_ns()}-{os.getpid()}.jsonl")
                    lines.drop_oldest(parent, KEPT, self._lines.file)
                self._lines.append(request)
            except OSError as error:
                log.info("the requests of this helper are not kept: %s", error)


def requests(root: Path, since: float) -> list[RemoteRequest]:
    """The requests of the store at ``root`` that ended after ``since``, ordered by the time at which they began. Leaves
    out untrusted and unreadable files.
    """
    return sorted((one for one in _read(root) if one.ended >= since), key=lambda one: one.began)


def _read(root: Path) -> Iterator[RemoteRequest]:
    with suppress(OSError, StoreError), trust.open_directory(root / REQUESTS) as fd:
        for file in os.listdir(fd):
            with suppress(OSError, StoreError, ValueError, TypeError):
                for line in lines.read(file, fd, shown=str(root / REQUESTS / file)):
                    what, path, began, seconds, size, problem = line
                    yield RemoteRequest(str(what), str(path), float(began), float(seconds), int(size), str(problem))
