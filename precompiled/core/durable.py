"""New files and changed directories, on the disk before the next step: what a rename makes visible is whole."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, data: bytes, mode: int) -> None:
    """Write a file that is not there yet; raises OSError, FileExistsError and for a link of that name among them."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)


def sync_directory(path: Path) -> None:
    """What was renamed into it or out of it survives a loss of power."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
