"""Workers that are about to compile the same for several keys: one of them does it, the others wait for it.

Ranks of a job have keys of their own where they use DTensors, and mostly one artifact
(torch_internals/ranks/rank_dependence.py). The rank that compiles first publishes it under all of the keys, or finds
early on that it cannot, and lets the others begin.

A record lock on a file: it ends with its process, and no child has it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Turn:
    """``waited``: another worker had it, and has done."""

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
        """Let the others go on. More than once is once."""
        if self._file is not None:
            if not self.waited:
                with suppress(FileNotFoundError):
                    self._path.unlink()
            os.close(self._file)
            self._file = None


@contextmanager
def turn(folder: Path, name: str) -> Iterator[Turn | None]:
    """The turn to compile what is called ``name``; None where it needs none (""), or the folder cannot be used."""
    found = None
    if name:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = Turn(folder / f"{name}.turn")
    try:
        yield found
    finally:
        if found is not None:
            found.end()
