"""Whose file a source is: Python's, installed, ours or the user's own; and whether this process may have loaded it."""

from __future__ import annotations

import os
import site
import sysconfig
import time
from functools import cache

_paths = sysconfig.get_paths()
_INSTALLED = tuple(
    os.path.join(directory, "")
    for directory in {os.path.realpath(_paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {_paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {site.getusersitepackages() if site.ENABLE_USER_SITE else _paths["stdlib"]}
)
_STANDARD = tuple(os.path.join(_paths[name], "") for name in ("stdlib", "platstdlib"))
_OURS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")


def is_users(path: str) -> bool:
    """Whether a file is the user's own: not of Python, not installed, not ours."""
    path = os.path.abspath(path)
    return not (
        path.startswith(_INSTALLED) or "/site-packages/" in path or "/dist-packages/" in path or is_ours(path)
        or path.startswith("/proc/")
    )  # fmt: skip


def is_standard(path: str) -> bool:
    """Whether a file is of Python's standard library."""
    return path.startswith(_STANDARD) and "/site-packages/" not in path and "/dist-packages/" not in path


def is_ours(path: str) -> bool:
    return path.startswith(_OURS)


@cache
def process_start() -> float:
    """When this process started, in seconds since the epoch and to a clock tick: what was saved later, it may not have.

    Not psutil's, which goes by the boot time, and that is known to a second only.
    """
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        # After the name, which may hold anything: the 22nd field of all, in ticks since the boot (man 5 proc).
        ticks = int(file.read().rpartition(")")[2].split()[19])
    tick = 1 / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks * tick
    return time.time() - age + tick
