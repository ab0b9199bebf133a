"""Lets one worker compile an artifact for the keys of several ranks, while the other ranks' workers wait.

Ranks that use DTensors have different keys, but can usually share one artifact
(torch_internals/ranks/rank_dependence.py). The first worker publishes its artifact under all of these keys. If the
artifact turns out to depend on the rank, the worker ends its turn early, and the other workers compile.

The turn is a record lock on a file. Linux releases the lock when the process that holds it ends. Children do not
inherit the lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class WorkerTurn:
    """A worker's turn. ``waited``: this worker waited until another worker's turn ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.waited = False
        except OSError:
            fcntl.lockf(self._file, fcntl.LOCK_SH)
            self.waited = True

    def end(self) -> None:
        """End the turn, so that waiting workers continue. Idempotent."""
        if self._file is not None:
            if not self.waited:
                with suppress(FileNotFoundError):
                    self._path.unlink()
            os.close(self._file)
            self._file = None


@contextmanager
def turn(folder: Path, name: str) -> Iterator[WorkerTurn | None]:
    """Take the turn ``name``, or wait until the worker that holds it has ended it. Yields None if ``name`` is "" (no
    turn is needed) or the folder cannot be used.
    """
    found = None
    if name:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = WorkerTurn(folder / f"{name}.turn")
    try:
        yield found
    finally:
        if found is not None:
            found.end()
