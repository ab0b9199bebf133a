"""Manages the workers' Inductor cache in the store's directory. The cache speeds up compiles; clients do not load it.

::

    scratch/<GENERATION>-<boot>/    used by workers of this format, until the machine restarts

Workers trust every file in the cache, but a file is incomplete if its writer was killed or the disk was full. So a file
gets its name only when it is complete (torch_internals/worker/cpp_builds.py). GENERATION excludes the files of older
versions of precompiled, which named incomplete files. Files are not synced, so after a power loss a file may have a
name but no content. So each boot of the machine uses a new directory.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

SCRATCH = "scratch"
GENERATION = 2  # in generation 1, scratch/ itself was the cache, and compilers wrote files under their final names
MAX_AGE_S = 7 * 86400.0
MIN_AGE_S = 1800.0
SHARE = 1 / 4  # the largest fraction of the store's budget that the cache may use


def directory(root: Path) -> Path:
    """The cache directory of the workers that use the store at ``root``."""
    return root / SCRATCH / f"{GENERATION}-{_boot()}"


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "any"


def weigh(root: Path) -> dict[str, int]:
    """The bytes of all files of the store at ``root``, by kind of file."""
    sizes = dict.fromkeys(("artifacts", "packages", "kernels", "failure records", "scratch", "records and logs"), 0)
    for parent, _, names in os.walk(root):
        folder = os.path.relpath(parent, root).partition(os.sep)[0]
        part = folder if folder in sizes else "records and logs"
        for name in names:
            with suppress(OSError):
                is_failure = folder == "artifacts" and name.endswith(".failed")
                sizes["failure records" if is_failure else part] += os.lstat(os.path.join(parent, name)).st_size
    return sizes


def shrink(root: Path, max_bytes: int) -> int:
    """Remove files that were unused for MAX_AGE_S, then the least recently used files until ``max_bytes`` holds.
    Returns how many bytes of ``max_bytes`` the remaining files use.
    """
    files: list[tuple[float, int, str]] = []
    directories: list[str] = []
    for parent, names_of_directories, names in os.walk(root / SCRATCH):
        directories += [os.path.join(parent, name) for name in names_of_directories]
        for name in names:
            path = os.path.join(parent, name)
            with suppress(OSError):
                status = os.lstat(path)
                files.append((max(status.st_mtime, status.st_atime), status.st_size, path))
    total = sum(size for _, size, _ in files)
    now = time.time()
    # A young file stays, because a worker may be using it.
    for used, size, path in sorted(files):
        age = now - used
        if age <= MIN_AGE_S or (age <= MAX_AGE_S and total <= max_bytes):
            break
        with suppress(OSError):
            os.unlink(path)
            total -= size
    for path in reversed(directories):  # children come before their parents
        with suppress(OSError):
            if now - os.lstat(path).st_mtime > MAX_AGE_S:
                os.rmdir(path)
    return min(total, max_bytes)
