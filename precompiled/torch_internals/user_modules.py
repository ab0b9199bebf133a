"""Modules of the user's that a worker imports: what a graph needs of them, by name, and a digest of their sources.

The sources are the modules' own files and, of the user's own, the files of the modules that those refer to. An
installed package's other files are left out: they change with a new installation, not with an edit. Torch's own code
is named without a digest: its version is in the key.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from precompiled.errors import Bypass

_INSTALLED = tuple(
    str(Path(sysconfig.get_paths()[name]).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)

# A function or class at the top level of a module: module, qualified name, digest of the sources ("" for torch's own).
Name = list[str]


def name_of(thing: Callable[..., Any], *, code: str) -> Name:
    """How a worker finds a function or class. Raises Bypass (``code``) for one that an import does not lead to."""
    module, qualname = thing.__module__, thing.__qualname__
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if module == "__main__" or found is not thing:
        raise Bypass(f"{qualname} cannot be imported from {module}", "Move it to the top level of a module", code=code)
    return [module, qualname, "" if module.split(".")[0] == "torch" else sources_digest([module])]


def find(name: Name) -> Any:
    """What ``name_of`` named; raises ValueError, ImportError or AttributeError where it is not that any more."""
    module, qualname, digest = name
    if digest:
        import_modules(module, digest)
    elif module.split(".")[0] != "torch":
        raise ValueError(f"{module} comes without a digest of its sources")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


def sources_digest(modules: list[str]) -> str:
    """SHA-256 over the sources; raises Bypass for a module that has none."""
    state = hashlib.sha256()
    for path in sorted(_source_files(modules)):
        if path.stat().st_mtime > _process_start():
            # What is loaded here may be the old source: nobody can tell, so nothing is named after the new one.
            raise Bypass(f"{path.name} was saved after this process started", code="custom-op-edited")
        # Not the path: two checkouts of one project may share artifacts.
        state.update(f"{path.name}\n".encode())
        state.update(hashlib.sha256(path.read_bytes()).digest())
    return state.hexdigest()


@cache
def _process_start() -> float:
    """Seconds since the epoch, to a clock tick (psutil's goes by the boot time, which is known to a second only)."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        # After the name, which may hold anything: the 22nd field of all, in ticks since the boot (man 5 proc).
        ticks = int(file.read().rpartition(")")[2].split()[19])
    tick = 1 / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks * tick
    return time.time() - age + tick


def _source_files(modules: list[str]) -> set[Path]:
    files: set[Path] = set()
    waiting = list(modules)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = _file_of(name)
        if path is None:
            if name in modules:
                raise Bypass(f"the module {name} of a custom op has no source file", code="custom-op")
            continue
        installed = str(path).startswith(_INSTALLED)
        if installed and name not in modules:
            continue
        files.add(path)
        if not installed:
            waiting += _referred(sys.modules[name])
    return files


def _file_of(name: str) -> Path | None:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if file and file.endswith(".py") else None


def _referred(module: ModuleType) -> set[str]:
    names = set()
    for value in list(vars(module).values()):
        found = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(found, str):
            names.add(found)
    return names


def import_modules(names: str, digest: str) -> None:
    """In a worker: import what ``defining_module`` named; raises ValueError when its sources are others by now."""
    modules = names.split(",")
    for name in modules:
        importlib.import_module(name)
    here = sources_digest(modules)
    if here != digest:
        raise ValueError(f"the sources of {names} have changed since the graph was captured")
