"""Files of JSON lines that are kept for people, and serve nothing: runs/, jobs/, requests/ (a file of each here).

A line is written at once and whole, by one process, to a file of its own. A file has a limit, and so has a folder; what
is beyond is not kept.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precompiled.store import trust

MAX_BYTES = 1 << 20  # of a file, about; what comes after that is not kept


def folder(root: Path, *names: str) -> Path:
    """A folder in a store, made with the modes that a store must have. Raises OSError."""
    path = root
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in names:
        path = path / name
        # Each by itself: a parent would get the umask's mode, and a store that a group may write is not trusted.
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def drop_oldest(parent: Path, kept: int, but: Path) -> None:
    """Remove what lies in ``parent``, but for the ``kept`` newest, among which is ``but``."""
    others = sorted((path for path in parent.iterdir() if path != but), key=_changed, reverse=True)
    for old in others[kept - 1 :]:
        if old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class Lines:
    """A file that is being written."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.left = MAX_BYTES

    def append(self, line: Mapping[str, Any] | Sequence[Any]) -> None:
        """Raises OSError."""
        data = json.dumps(line).encode() + b"\n"
        if len(data) > self.left:
            return
        self.left -= len(data)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self.file, flags, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)


def read(name: str, directory_fd: int, *, shown: str) -> list[Any]:
    """The lines of a file in a checked directory. Raises OSError, StoreError, ValueError."""
    data = trust.read_file(name, directory_fd, 2 * MAX_BYTES, shown=shown)
    # What is being written has no end yet.
    return [json.loads(line) for line in data.split(b"\n")[:-1] if line]
