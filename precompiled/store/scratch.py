"""The workers' own Inductor cache, below the store: it only makes compiles quicker, and nothing in it is ever served.

::

    scratch/<GENERATION>-<boot>/    what workers of this format use, until the machine is started anew

What one of them leaves there when it is killed, or the disk is full, the next ones would believe; so every file gets
its name when it is whole (torch_internals/worker/cpp_builds.py). That holds for what is written from now on:
GENERATION leaves behind what earlier workers left half-written. And it holds while the machine runs: nothing here is
synced, so after a loss of power a file may have a name and no content, which is why each start of the machine has a
directory of its own.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

SCRATCH = "scratch"
GENERATION = 2  # 1: in scratch/ itself, with files that a compiler was writing under their final names
MAX_AGE_S = 7 * 86400.0
MIN_AGE_S = 1800.0
SHARE = 1 / 4  # of the store's budget, at most


def directory(root: Path) -> Path:
    """Where the workers on the store at ``root`` have their files."""
    return root / SCRATCH / f"{GENERATION}-{_boot()}"


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "any"


def weigh(root: Path) -> tuple[int, int]:
    """Bytes of all files of the store at ``root``, and of those of them that are the workers' own."""
    whole = own = 0
    ours = os.path.join(root, SCRATCH)
    for parent, _, names in os.walk(root):
        for name in names:
            with suppress(OSError):
                size = os.lstat(os.path.join(parent, name)).st_size
                whole += size
                own += size if parent == ours or parent.startswith(ours + os.sep) else 0
    return whole, own


def shrink(root: Path, max_bytes: int) -> int:
    """Remove what was not used for long, then the oldest files; how much of ``max_bytes`` is used now."""
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
    # Nothing young: a worker may be compiling in there now.
    for used, size, path in sorted(files):
        age = now - used
        if age <= MIN_AGE_S or (age <= MAX_AGE_S and total <= max_bytes):
            break
        with suppress(OSError):
            os.unlink(path)
            total -= size
    for path in reversed(directories):  # what they contain comes first
        with suppress(OSError):
            if now - os.lstat(path).st_mtime > MAX_AGE_S:
                os.rmdir(path)
    return min(total, max_bytes)
