"""Opens only regular files. A process that opens a FIFO blocks until another process opens it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def open_regular(path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Like ``os.open``; usable as the ``opener`` of ``open``. Raises OSError unless the path is a regular file or
    ``/dev/null``.
    """
    refusal = OSError(errno.EINVAL, "not a regular file", str(path))
    try:
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a FIFO without a reader, or a socket
            raise refusal from error
        raise
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) and found.st_rdev != os.stat(os.devnull).st_rdev:
            raise refusal
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_bytes(path: str | Path) -> bytes:
    """All bytes of a regular file. Raises OSError."""
    with open(path, "rb", opener=open_regular) as file:
        return file.read()
