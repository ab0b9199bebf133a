"""Writes files and directory changes durably: a file is complete on the disk before a rename makes it visible."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write(path: Path, data: bytes, mode: int) -> None:
    """Write a new file. Raises FileExistsError if the name exists (even as a dangling link), or another OSError."""
    with _new(path, mode) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(target: Path, mode: int, *, temporary: Path | None = None, sync: bool = True) -> Iterator[BinaryIO]:
    """Open a file that replaces ``target`` atomically when the block ends. An error leaves no file behind.

    - ``temporary``: the file's name until the end of the block, on the same file system. The default is a hidden name
      beside the target, with a random ending.
    - ``sync=False``: for a file that a power loss may destroy

    If the new name must survive a power loss, call ``sync_directory``.
    """
    temporary = temporary or target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}")
    file = _new(temporary, mode)
    try:
        with file:
            yield file
            file.flush()
            if mode & 0o077:  # other users must be able to read the file under any umask
                os.fchmod(file.fileno(), mode)
            if sync:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _new(path: Path, mode: int) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode), "wb")


def sync_directory(path: Path) -> None:
    """Make renames into and out of a directory survive a power loss."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
