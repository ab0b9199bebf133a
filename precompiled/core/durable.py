"""New files and changed directories, on the disk before the next step: what a rename makes visible is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def write(path: Path, data: bytes, mode: int) -> None:
    """Write a file that is not there yet; raises OSError, FileExistsError and for a link of that name among them."""
    with _new(path, mode) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(target: Path, mode: int, *, temporary: Path | None = None, sync: bool = True) -> Iterator[BinaryIO]:
    """A file that takes the place of ``target`` when the block ends, whole; after an error nothing of it is left.

    ``temporary``: its name until then, on the same disk; without, a hidden one beside the target, with an ending that
    nobody looks for. ``sync=False``: for what a loss of power may take. That the new name outlives one, too, is
    ``sync_directory``'s affair.
    """
    temporary = temporary or target.with_name(f".{target.name}.{os.getpid()}-{os.urandom(4).hex()}")
    file = _new(temporary, mode)
    try:
        with file:
            yield file
            file.flush()
            if mode & 0o077:  # others are meant to read it, whatever our umask is
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
    """What was renamed into it or out of it survives a loss of power."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
