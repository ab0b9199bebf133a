"""Modules of the user that a worker imports: the names that a graph needs from them, and a digest of their sources.

The sources are the modules' own files and, of the user's own modules, the files of those that they import or refer to,
with the values that are set in them now (user_values.py). Of an installed package the digest is that of its record
(installations.py): it changes with a new installation, not with an edit; values count of the named modules alone.
Torch's own code is named without a digest, and ours: the key has their versions. A module may be a shared library; one
that no import leads to is named by its path (shared_libraries.py).

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import itertools
import os
import sys
import sysconfig
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from precompiled.core.errors import Bypass
from precompiled.core.files import process_start, saved
from precompiled.core.names import object_at
from precompiled.torch_internals.user_code import installations, shared_libraries, user_values

# Not as in core.files, which knows more places: a digest in the key depends on these, in clients and in workers.
_INSTALLED = tuple(
    str(Path(sysconfig.get_paths()[name]).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)

# The key has torch's version, and SCHEMA (graph/key.py) says what a worker makes of a program.
_IN_THE_KEY = frozenset({"torch", "precompiled"})
# vLLM says which variables its operators depend on, and they are in the key (graph/environment.py). What else is set in
# its modules is set by each engine, and no worker has it.
_SAYS_ITSELF = frozenset({"vllm"})
# A function or class at the top level of a module: module, qualified name, digest of the sources ("" for those above).
Name = list[str]


def name_of(thing: Any, module: str | None = None, qualname: str | None = None, *, code: str) -> Name:
    """How a worker finds a function or class. Raises Bypass (``code``) where an import does not lead to it.

    ``module`` and ``qualname``: for an object without these attributes.
    """
    module, qualname = module or thing.__module__, qualname or thing.__qualname__
    if module == "__main__" or object_at(module, qualname) is not thing:
        raise Bypass(f"{qualname} cannot be imported from {module}", "Move it to the top level of a module", code=code)
    return [module, qualname, _digest_of(module, code=code)]


def _digest_of(module: str, *, code: str) -> str:
    return "" if _is_in_the_key(module) else modules_digest([module], code=code)


def _is_in_the_key(module: str) -> bool:
    return module.partition(".")[0] in _IN_THE_KEY


def name_with_module(thing: Any, modules: dict[str, str], *, code: str) -> Name:
    """``name_of``; its module is added to those that a worker must import, with the digest."""
    name = name_of(thing, code=code)
    module, _, digest = name
    if digest:
        modules[module] = digest
    return name


def find(name: Name) -> Any:
    """The object that ``name_of`` named; raises ValueError, ImportError or AttributeError where it has changed."""
    module, qualname, digest = name
    return attrgetter(qualname)(find_module([module, digest]))


def name_of_module(module: ModuleType, *, code: str) -> list[str]:
    """A module's name, and the digest of its sources ("" as in a ``Name``). Raises Bypass (``code``)."""
    name = module.__name__
    if name == "__main__" or sys.modules.get(name) is not module:
        raise Bypass(f"{name} cannot be imported", code=code)
    return [name, _digest_of(name, code=code)]


def find_module(named: list[str]) -> ModuleType:
    """The module that ``name_of_module`` named; raises as ``find``."""
    name, digest = named
    if digest:
        import_modules(name, digest)
    elif not _is_in_the_key(name):
        raise ValueError(f"{name} comes without a digest of its sources")
    return importlib.import_module(name)


def name_of_library(path: str) -> str:
    """How a worker loads a shared library: the module that it is, where an import leads to it, or else its path."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and shared_libraries.is_extension(file) and os.path.realpath(file) == path:
            parent = sys.modules.get(name.rpartition(".")[0])
            found = PathFinder.find_spec(name, getattr(parent, "__path__", None))
            if found is not None and found.origin and os.path.realpath(found.origin) == path:
                return name
    if "," in path or "::" in path:  # which part the names of modules and of operators
        raise Bypass(f"the library {path} cannot be named", code="custom-op")
    return path


def modules_digest(modules: list[str], *, code: str = "custom-op") -> str:
    """SHA-256 over their sources and the values in them; raises Bypass (``code``) for a module without sources."""
    state = hashlib.sha256()
    files, packages = _source_files(modules, code)
    for path, name in sorted(files.items()):
        if path.suffix != ".py":
            loaded = name in modules  # with the libraries that it needs, which a library that is not loaded has not yet
            found = (
                shared_libraries.digest(str(path), code=code) if loaded else shared_libraries.content_digest(str(path))
            )
            state.update(f"{path.name} {found}\n".encode())
            continue
        if saved(os.path.abspath(getattr(sys.modules.get(name), "__file__", None) or path)) > process_start():
            # This process may have loaded the old source or the new one, so there is no digest of what it has loaded.
            raise Bypass(f"{path.name} was saved after this process started", code="custom-op-edited")
        # Not the path: two checkouts of one project may share artifacts.
        state.update(f"{path.name}\n".encode())
        state.update(hashlib.sha256(path.read_bytes()).digest())
        installed = str(path).startswith(_INSTALLED)
        if not installed or (name in modules and name.partition(".")[0] not in _SAYS_ITSELF):
            state.update(user_values.values(name).encode())
    for package in sorted(packages):
        state.update(f"{package} {installations.digest(package)}\n".encode())
    return state.hexdigest()


def _source_files(modules: list[str], code: str) -> tuple[dict[Path, str], set[str]]:
    """Source file -> its module; and the installed packages that these import."""
    files: dict[Path, str] = {}
    packages: set[str] = set()
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
                raise Bypass(f"the module {name} has no source file", code=code)
            continue
        installed = str(path).startswith(_INSTALLED)
        if installed and not name.startswith("/"):
            packages.add(name.partition(".")[0])
        if installed and name not in modules:
            continue
        files[path] = name
        if path.suffix != ".py":  # the code of the packages that it lies in is run when it is imported
            waiting += () if name.startswith("/") else itertools.accumulate(name.split(".")[:-1], "{}.{}".format)
        elif not installed:
            waiting += _imported(path, path.stat().st_mtime_ns, name)
            waiting += _referred(sys.modules.get(name))
    return files, packages


def _file_of(name: str) -> Path | None:
    """The source of a module, or the library that it is."""
    if name.startswith("/"):
        return Path(name)
    file = getattr(sys.modules.get(name), "__file__", None) or getattr(_spec(name), "origin", None)
    return Path(file).resolve() if file and (file.endswith(".py") or shared_libraries.is_extension(file)) else None


def _spec(name: str) -> ModuleSpec | None:
    """The spec of a module, also of one that is not imported yet; nothing is imported for it."""
    if name in sys.modules:
        return sys.modules[name].__spec__
    parent = name.rpartition(".")[0]
    if not parent:
        return PathFinder.find_spec(name)
    found = _spec(parent)
    return (
        PathFinder.find_spec(name, found.submodule_search_locations)
        if found and found.submodule_search_locations
        else None
    )


@cache
def _imported(path: Path, saved: int, name: str) -> set[str]:
    """The names that a source imports, at any depth: of modules, and perhaps of objects in them."""
    del saved  # part of the cache's key: the source may change
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".") if package else []
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    # A package's own code runs when a module of it is imported.
    return {part for whole in found for part in itertools.accumulate(whole.split("."), "{}.{}".format) if part}


def _referred(module: ModuleType | None) -> set[str]:
    if module is None:
        return set()
    names = set()
    for value in list(vars(module).values()):
        try:
            found = value.__name__ if issubclass(type(value), ModuleType) else getattr(value, "__module__", None)
        except Exception:  # noqa: BLE001 - a proxy, whose attributes are code of the user's
            continue
        # A package has an attribute for each of its modules that is imported: in a worker these may be others.
        if isinstance(found, str) and not found.startswith(f"{module.__name__}."):
            names.add(found)
    return names


def import_modules(names: str, digest: str) -> None:
    """Import the modules that ``defining_modules`` named, in a worker or another program.

    Raises ValueError where their sources differ.
    """
    modules = names.split(",")
    for name in modules:
        if name.startswith("/"):
            torch.ops.load_library(name)
        else:
            importlib.import_module(name)
    here = modules_digest(modules)
    if here != digest:
        raise ValueError(f"the sources of {names}, or values that are set in them, are not those of the capture")
