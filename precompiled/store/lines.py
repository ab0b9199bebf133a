"""Writes and reads files of JSON lines for display: runs/ (run_records.py), jobs/ (job_phases.py) and requests/.

Each process has its own file, and writes each line with one ``write`` call. Beyond a file's limit, lines are dropped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precompiled.core.json_text import parse_json
from precompiled.core.regular_file import open_regular
from precompiled.store import trust

MAX_BYTES = 1 << 20  # the approximate limit of a file, in bytes; later lines are dropped


def folder(root: Path, *names: str) -> Path:
    """Create a folder in a store, with the modes that a store must have. Raises OSError."""
    path = root
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in names:
        path = path / name
        # Create the folders one by one. mkdir(parents=True) would give the parents the umask's mode, which may let a
        # group write. A store that a group can write is not trusted.
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def drop_oldest(parent: Path, kept: int, but: Path) -> None:
    """Remove the oldest entries of ``parent``. ``but`` and the newest other entries stay, ``kept`` in all."""
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


class AppendedFile:
    """A file to which this process appends lines."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.left = MAX_BYTES

    def append(self, line: Mapping[str, object] | Sequence[object]) -> None:
        """Append a line, unless the file is full. Raises OSError."""
        data = json.dumps(line).encode() + b"\n"
        if len(data) > self.left:
            return
        self.left -= len(data)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        fd = open_regular(self.file, flags, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)


def read(name: str, directory_fd: int, *, shown: str) -> list[Any]:
    """The lines of a file in a checked directory. Raises OSError, StoreError, ValueError."""
    data = trust.read_file(name, directory_fd, 2 * MAX_BYTES, shown=shown)
    # Leave out the last line: another process may be writing it.
    return [parse_json(line) for line in data.split(b"\n")[:-1] if line]
