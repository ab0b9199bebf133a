"""Custom operators of Python modules: which module defines one, and a digest of its sources.

A worker imports the module to have the operator. What is compiled depends on its fake kernel and its backward, which
can change under an unchanged graph (pytorch#144344, #160472): the sources' digest is in the key, and in the worker's
environment, so that a worker which has imported an older source never sees the graph.

The sources are the defining modules' files and, of the user's own, the files of the modules that those refer to. An
installed package's other files are left out: they change with a new installation, not with an edit.

Private names: torch._library.custom_ops.OPDEFS, CustomOpDef.{_init_fn, _abstract_fn, _setup_context_fn, _backward_fn,
_backend_fns}, torch._library.simple_registry.singleton. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._library import custom_ops, simple_registry

from precompiled.errors import Bypass

_INSTALLED = tuple(
    str(Path(sysconfig.get_paths()[name]).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def defining_module(op: torch._ops.OpOverload) -> tuple[str, str]:
    """The module that an operator comes with, and the digest of its sources. Raises Bypass where there is none."""
    name = op._schema.name
    functions = _functions(name, op._overloadname)
    # Some are wrapped by torch: what they wrap is among them too.
    modules = sorted({f.__module__ for f in functions if not f.__module__.startswith("torch.")})
    if not modules:
        raise Bypass(f"the custom op {name} has no Python definition that a worker could import", code="custom-op")
    if "__main__" in modules:
        raise Bypass(
            f"the custom op {name} is defined in the program itself",
            "Move it to a module that can be imported",
            code="custom-op-in-main",
        )
    return ",".join(modules), sources_digest(modules)


def _functions(name: str, overload: str) -> Iterator[Callable[..., Any]]:
    """Everything in Python that is known to be registered for an operator."""
    definition = custom_ops.OPDEFS.get(name)
    if definition is not None:
        yield definition._init_fn
        for found in (definition._abstract_fn, definition._setup_context_fn, definition._backward_fn):
            if found is not None:
                yield found
        yield from definition._backend_fns.values()
    for qualified in {name, f"{name}.{overload}"}:
        entry = simple_registry.singleton.get(qualified)
        kernel = entry.fake_impl.kernel if entry is not None else None
        if kernel is not None:
            yield kernel.func


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
