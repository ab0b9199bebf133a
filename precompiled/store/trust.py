"""Checks that no other user can have written code into the store, before anything in it is loaded.

Loading an artifact runs its code. So the rules are those of ssh for key files. Every file, and every directory from the
store's root down, must be owned by this process's user or by root. No other user may be able to write to these files
and directories. Symbolic links are never followed. The checks use file descriptors (openat), so that the file that is
checked is the file that is read.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from precompiled.core.errors import CorruptArtifact, UntrustedStore

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_stat(status: os.stat_result, what: str, *, directory: bool, setting: str = "") -> None:
    """Raise UntrustedStore unless ``status`` describes a directory (or regular file) that only this user and root can
    change.

    ``what``: the full path, because messages contain commands for it. ``setting``: the setting that names the path.
    """
    kind_is_right = stat.S_ISDIR(status.st_mode) if directory else stat.S_ISREG(status.st_mode)
    if not kind_is_right:
        kind = "directory" if directory else "regular file"
        text = "is a symbolic link" if stat.S_ISLNK(status.st_mode) else f"is not a {kind}"
        raise UntrustedStore(f"{what} {text}", _elsewhere(setting))
    uid = os.geteuid()
    recursive, path = "-R " if directory else "", shlex.quote(what)
    if status.st_uid not in (uid, 0):
        raise UntrustedStore(
            f"{what} is owned by uid {status.st_uid}, not by uid {uid} or root",
            f"Remove it, or run `chown {recursive}{uid} {path}` if you trust what it holds",
        )
    if status.st_mode & _OTHERS_WRITE:
        raise UntrustedStore(
            f"{what} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})",
            f"`chmod {recursive}go-w {path}` if you trust what it holds, else remove it",
        )


@contextmanager
def open_directory(
    path: str | Path, parent_fd: int | None = None, *, shown: str = "", setting: str = ""
) -> Iterator[int]:
    """A checked file descriptor of a directory. Raises FileNotFoundError if the directory is absent, UntrustedStore if
    the check fails. ``setting``: as in ``check_stat``.
    """
    what = shown or _full_path(path, parent_fd)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
    except NotADirectoryError as error:  # O_DIRECTORY | O_NOFOLLOW raises this error for a symbolic link as well
        raise UntrustedStore(f"{what} is not a directory, or is a symbolic link", _elsewhere(setting)) from error
    try:
        check_stat(os.fstat(fd), what, directory=True, setting=setting)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_file(name: str | Path, directory_fd: int | None = None, *, shown: str = "") -> Iterator[BinaryIO]:
    """A checked regular file, open for reading.

    Raises FileNotFoundError if the file is absent. Raises UntrustedStore if another user could have written the file,
    or if it is a link, a FIFO or a socket.
    """
    what = shown or _full_path(name, directory_fd)
    try:
        # O_NONBLOCK: a FIFO with this name must not block the open before fstat can refuse it.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:  # O_NOFOLLOW found a symbolic link
            raise UntrustedStore(f"{what} is a symbolic link", "Remove it") from error
        if error.errno == errno.ENXIO:  # the file is a socket
            raise UntrustedStore(f"{what} is not a regular file", "Remove it") from error
        raise
    try:
        check_stat(os.fstat(fd), what, directory=False)  # before fdopen, which raises another error for a directory
        with os.fdopen(fd, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(fd)


def _elsewhere(setting: str) -> str:
    # The advice names the setting first, because a mistyped path may name a file that the user needs.
    return f"Set another {setting}, or move it away" if setting else "Move it away"


def _full_path(path: str | Path, directory_fd: int | None) -> str:
    """The full path of a name in a directory, so that a command in a message works in any directory."""
    if directory_fd is None:
        return os.path.abspath(path)
    return os.path.join(os.readlink(f"/proc/self/fd/{directory_fd}"), path)


def read_file(name: str, directory_fd: int, limit: int, *, shown: str = "", expected: int | None = None) -> bytes:
    """All bytes of a checked regular file. Raises the errors of ``open_file``, and UntrustedStore if the file has more
    than ``limit`` bytes. If ``expected`` is given and the file's size differs, raises CorruptArtifact before reading.
    """
    with open_file(name, directory_fd, shown=shown) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise UntrustedStore(f"{shown or name} has {size} bytes, over the limit of {limit}", "Remove it")
        if expected is not None and size != expected:
            raise CorruptArtifact(f"{shown or name} has {size} bytes, the manifest says {expected}")
        return file.read(size)  # read() reserves ``size`` bytes at once; reserving `limit` bytes fails on small hosts
