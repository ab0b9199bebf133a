"""Determines a file's owner (Python, torch, an installed package, precompiled or the user), its save time, and whether
it was saved before this process loaded it.
"""

from __future__ import annotations

import importlib.util
import os
import site
import stat
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

from precompiled.core import kernel
from precompiled.core.looks import namespace_of

_Frame = TypeVar("_Frame")

_paths = sysconfig.get_paths()
_INSTALLED = tuple(
    os.path.join(directory, "")
    for directory in {os.path.realpath(_paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {_paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {site.getusersitepackages() if site.ENABLE_USER_SITE else _paths["stdlib"]}
)
_STANDARD = tuple(os.path.join(_paths[name], "") for name in ("stdlib", "platstdlib"))
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # the folder "precompiled"
_OURS = os.path.join(PACKAGE, "")


def is_users(path: str) -> bool:
    """Whether a file is the user's own, and not part of Python, precompiled or an installed package."""
    path = os.path.abspath(path)
    return not (
        path.startswith(_INSTALLED)
        or "/site-packages/" in path
        or "/dist-packages/" in path
        or is_ours(path)
        or path.startswith("/proc/")
    )


def is_standard(path: str) -> bool:
    """Whether a file belongs to Python's standard library."""
    return path.startswith(_STANDARD) and "/site-packages/" not in path and "/dist-packages/" not in path


def is_ours(path: str) -> bool:
    return path.startswith(_OURS)


@cache
def _torch_folder() -> str:
    spec = importlib.util.find_spec("torch")
    return os.path.join(os.path.dirname(spec.origin), "") if spec is not None and spec.origin else "\0"


def is_torchs(path: str) -> bool:
    """Whether a file is in torch's folder. Links are not resolved, so ``path`` must be like a module's ``__file__``."""
    return path.startswith(_torch_folder())


@cache
def _real_torch_folder() -> str:
    return os.path.join(os.path.realpath(_torch_folder()), "")


@cache
def is_really_torchs(path: str) -> bool:
    """Whether a file is in torch's folder after all links are resolved. False if the folder has only a link to the
    file.
    """
    return os.path.realpath(path).startswith(_real_torch_folder())


def innermost_users(frames: Sequence[_Frame], file: Callable[[_Frame], str]) -> _Frame:
    """The innermost frame that is not in torch. For a layer of torch.nn, this is the line that calls the layer."""
    return next((frame for frame in reversed(frames) if not is_torchs(file(frame))), frames[-1])


_ROUNDING_S = 1e-6  # more than the rounding error of a time in seconds since the epoch
_START_UP_S = 1.0  # Python needs less time to start. If more time has passed, another program ran before Python.
_FORKED = 0x40  # PF_FORKNOEXEC: forked without a later exec (linux/sched.h)


@cache
def process_start() -> float:
    """Return when this process was forked, in seconds since the epoch, with the precision of a clock tick.

    This process has loaded no file before this time. A fork's child has the modules of its parent, so the result is the
    parent's start. If the parent has ended, the result is the start of the process that adopted the child. (It is
    earlier, which is safe.) psutil's time is less precise, because it depends on the boot time in whole seconds.

    A shell may run for hours before it executes Python in its own process (``exec python main.py``). Linux does not
    record the time of the exec, so the result is the shell's start. ``earliest_load`` knows better.
    """
    process = kernel.stat_of()
    while process is not None and process.flags & _FORKED:
        process = kernel.stat_of(process.parent)
    if process is None:
        return 0.0
    tick = 1 / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - process.started * tick
    return time.time() - age + tick


class _Hook(NamedTuple):
    """What the hook recorded while Python started: a time, and the names and files of the modules that were loaded."""

    time: float
    modules: frozenset[str]
    files: frozenset[str]


_hook: _Hook | None = None


def note_hook(wall: float, booted: float, modules: Mapping[str, object]) -> None:
    """Record what the hook saw while Python started, before any code of the program ran (bootstrap.py).

    ``wall`` and ``booted`` are the hook's time by the clock of file times and since the boot. If the clock was set in
    between, the earlier of both results is safe: a file that was saved after the hook has a later time.
    """
    global _hook  # noqa: PLW0603
    converted = time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - booted)
    named = (namespace_of(module).get("__file__") for module in modules.values())
    # The program's code is loaded into the module __main__, which the interpreter creates before it runs the hook.
    _hook = _Hook(
        min(wall, converted) - _ROUNDING_S,
        frozenset(modules) - {"__main__"},
        frozenset(os.path.realpath(file) for file in named if type(file) is str),
    )


def hook_time() -> float | None:
    """Return when the hook ran while Python started, in seconds since the epoch. None if it did not run then."""
    return None if _hook is None else _hook.time


def earliest_load(module: str, path: str) -> float:
    """Return a time before which this process loaded no version of a module's file, in seconds since the epoch.

    If the file was saved later, this process may have loaded an earlier version. For modules that were loaded before
    the hook, the result is the start of the process. For other modules, the result is the time of the hook.
    """
    if _hook is None or module in _hook.modules or os.path.realpath(path) in _hook.files:
        return process_start()
    return _hook.time


def launch_time() -> float:
    """Return when Python started in this process, for display.

    ``process_start`` is more precise, unless another program ran in this process before Python.
    """
    started = process_start()
    return started if _hook is None or _hook.time - started < _START_UP_S else _hook.time


def save_time(path: str) -> float:
    """Return the time at which a file got its present content and path, in seconds since the epoch. Raises OSError.

    The result is the latest of the file's mtime, the file's ctime (which a rename changes) and the ctimes of the links
    on the path.
    """
    status = os.stat(path)
    found = max(status.st_mtime, status.st_ctime)
    while path != (parent := os.path.dirname(path)):
        link = os.lstat(path)
        if stat.S_ISLNK(link.st_mode):
            found = max(found, link.st_ctime)
        path = parent
    return found
