"""Names the temporary files of a store, removes and measures directory trees, and moves files to the quarantine."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path


def temporary_name() -> str:
    """A name for a file or folder in ``tmp/``."""
    return f"{os.getpid()}-{os.urandom(8).hex()}"


def is_directory(path: Path) -> bool:
    """Whether a path is a directory and not a link. False if the file system raises an error."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def remove_tree(path: Path) -> None:
    """Remove a file or tree, best effort. A later eviction removes the rest."""
    with suppress(OSError):
        if is_directory(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def weigh_tree(path: Path) -> tuple[int, int]:
    """The bytes and inodes of a directory tree."""
    size, inodes = 0, 1
    for parent, directories, files in os.walk(path):
        inodes += len(directories) + len(files)
        size += sum(os.lstat(os.path.join(parent, name)).st_size for name in files)
    return size, inodes


def remove_at_once(path: Path, tmp: Path) -> int | None:
    """Remove an artifact. Returns the artifact's size in bytes, or None if another process has removed the artifact.

    The directory is renamed into ``tmp`` first, so that a reader finds a complete artifact or none. A reader that has
    already opened the directory can continue to read.
    """
    grave = tmp / temporary_name()
    try:
        size, _inodes = weigh_tree(path)
        tmp.mkdir(mode=0o700, exist_ok=True)
        move_away(path, grave)
    except OSError:
        return None
    remove_tree(grave)
    return size


def move_away(path: Path, target: Path) -> None:
    """Rename a file or directory, or remove it if it cannot be renamed. Raises OSError.

    For example, an overlay cannot rename a directory of a lower layer, such as a store in a container's image.
    """
    try:
        os.rename(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        remove_tree(path)


def quarantine(path: Path, folder: Path, reason: str) -> None:
    """Move an unusable file or directory to ``folder``, for people to inspect, with the reason beside it. Best
    effort.
    """
    target = folder / f"{path.name}.{temporary_name()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        move_away(path, target)
        (folder / f"{target.name}.reason").write_text(reason + "\n")
