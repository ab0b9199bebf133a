"""Names the user's functions and classes for a worker to import, and computes digests of their modules' sources.

- The sources of a user's module are its file, the files of the user's modules that it imports or refers to, and the
  values that are set in these modules (user_values.py).
- For an installed package, the digest covers its installation record (installations.py), which changes with a new
  installation but not with an edit. If a named module belongs to such a package, the digest also covers this module's
  source and values.
- Code of torch and of this project has no digest, because the key contains torch's version and key.SCHEMA.
- A module may be a shared library. A library that cannot be imported is named by its path (shared_libraries.py).

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

from precompiled.core import interruptions
from precompiled.core.errors import Bypass
from precompiled.core.files import earliest_load, save_time
from precompiled.core.names import object_at
from precompiled.torch_internals.user_code import installations, shared_libraries, user_values

# The digests in the key depend on this list, in clients and in workers. core.files has a similar, longer list.
_INSTALLED = tuple(
    str(Path(sysconfig.get_paths()[name]).resolve()) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)

# The key contains torch's version. SCHEMA (graph/key.py) changes whenever a worker handles a graph differently.
_IN_THE_KEY = frozenset({"torch", "precompiled"})
# Packages whose modules' values are left out of the digest. vLLM declares the environment variables on which its
# operators depend, and the key contains these variables (graph/environment.py). In vLLM's modules, each engine sets
# further values that a worker does not have.
_SAYS_ITSELF = frozenset({"vllm"})
# A function or class at the top level of a module: module, qualified name, digest of the sources ("" if in the key).
Name = list[str]


def name_of(thing: Any, module: str | None = None, qualname: str | None = None, *, code: str) -> Name:
    """The name by which a worker finds a function or class. Raises Bypass (``code``) if it cannot be imported.

    ``module`` and ``qualname`` stand for ``__module__`` and ``__qualname__`` if the object lacks these.
    """
    module, qualname = _importable(thing, module or thing.__module__, qualname or thing.__qualname__, code)
    return [module, qualname, _digest_of(module, code=code)]


def _importable(thing: Any, module: str, qualname: str, code: str) -> tuple[str, str]:
    if module == "__main__" or object_at(module, qualname) is not thing:
        raise Bypass(f"{qualname} cannot be imported from {module}", "Move it to the top level of a module", code=code)
    return module, qualname


def _digest_of(module: str, *, code: str) -> str:
    return "" if _is_in_the_key(module) else modules_digest([module], code=code)


def _is_in_the_key(module: str) -> bool:
    return module.partition(".")[0] in _IN_THE_KEY


def name_with_module(thing: type, modules: dict[str, str], *, code: str) -> Name:
    """Like ``name_of``, but also adds the module and its digest to ``modules``, for a worker to import.

    Reuses digests in ``modules``, because a graph may have hundreds of inputs of one class.
    """
    module, qualname = _importable(thing, thing.__module__, thing.__qualname__, code)
    if module not in modules and not _is_in_the_key(module):
        modules[module] = modules_digest([module], code=code)
    return [module, qualname, modules.get(module, "")]


def find(name: Name) -> Any:
    """The object that ``name_of`` named. Raises ValueError, ImportError or AttributeError if it has changed."""
    module, qualname, digest = name
    return attrgetter(qualname)(find_module([module, digest]))


def name_of_module(module: ModuleType, *, code: str) -> list[str]:
    """A module's name and the digest of its sources ("" as in a ``Name``). Raises Bypass (``code``)."""
    name = module.__name__
    if name == "__main__" or sys.modules.get(name) is not module:
        raise Bypass(f"{name} cannot be imported", code=code)
    return [name, _digest_of(name, code=code)]


def find_module(named: list[str]) -> ModuleType:
    """The module that ``name_of_module`` named. Raises ValueError, ImportError or AttributeError if it has changed."""
    name, digest = named
    if digest:
        import_modules(name, digest)
    elif not _is_in_the_key(name):
        raise ValueError(f"{name} comes without a digest of its sources")
    return importlib.import_module(name)


def name_of_library(path: str) -> str:
    """The name by which a worker loads a shared library: its module if it can be imported, or else its path."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and shared_libraries.is_extension(file) and os.path.realpath(file) == path:
            parent = sys.modules.get(name.rpartition(".")[0])
            found = PathFinder.find_spec(name, getattr(parent, "__path__", None))
            if found is not None and found.origin and os.path.realpath(found.origin) == path:
                return name
    if "," in path or "::" in path:  # these separate the names of modules and of operators
        raise Bypass(f"the library {path} cannot be named", code="custom-op")
    return path


def modules_digest(modules: list[str], *, code: str = "custom-op") -> str:
    """SHA-256 over the modules' sources and values. Raises Bypass (``code``) for a module without sources."""
    state = hashlib.sha256()
    files, packages = _source_files(modules, code)
    for path, name in sorted(files.items()):
        if path.suffix != ".py":
            # A library in ``modules`` is loaded, so its digest covers the libraries that it needs. Other libraries may
            # not be loaded yet.
            loaded = name in modules
            found = (
                shared_libraries.digest(str(path), code=code) if loaded else shared_libraries.content_digest(str(path))
            )
            state.update(f"{path.name} {found}\n".encode())
            continue
        linked = os.path.abspath(getattr(sys.modules.get(name), "__file__", None) or path)
        if save_time(linked) > earliest_load(name, linked):
            # The process may have loaded the file before or after this save, so the digest of the loaded code is
            # unknown.
            raise Bypass(f"{path.name} was saved after this process started", code="custom-op-edited")
        # The path is not included, so that two checkouts of one project can share artifacts.
        state.update(f"{path.name}\n".encode())
        state.update(hashlib.sha256(path.read_bytes()).digest())
        installed = str(path).startswith(_INSTALLED)
        if not installed or (name in modules and name.partition(".")[0] not in _SAYS_ITSELF):
            state.update(user_values.values(name).encode())
    for package in sorted(packages):
        state.update(f"{package} {installations.digest(package)}\n".encode())
    return state.hexdigest()


def _source_files(modules: list[str], code: str) -> tuple[dict[Path, str], set[str]]:
    """Map each source file to its module. Also return the installed packages that these modules import."""
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
        if path.suffix != ".py":  # importing a library also runs the code of the packages that contain it
            waiting += () if name.startswith("/") else itertools.accumulate(name.split(".")[:-1], "{}.{}".format)
        elif not installed:
            waiting += _imported(path, path.stat().st_mtime_ns, name)
            waiting += _referred(sys.modules.get(name))
    return files, packages


def _file_of(name: str) -> Path | None:
    """The file of a module: its source, or a shared library."""
    if name.startswith("/"):
        return Path(name)
    file = getattr(sys.modules.get(name), "__file__", None) or getattr(_spec(name), "origin", None)
    return Path(file).resolve() if file and (file.endswith(".py") or shared_libraries.is_extension(file)) else None


def _spec(name: str) -> ModuleSpec | None:
    """The spec of a module, found without importing anything."""
    if name in sys.modules:
        return sys.modules[name].__spec__
    parent, _, last = name.rpartition(".")
    if not parent:
        return PathFinder.find_spec(name)
    found = _spec(parent)
    if not found or not found.submodule_search_locations:
        return None
    places = list(found.submodule_search_locations)
    try:
        return PathFinder.find_spec(name, places)
    except KeyError:  # a namespace package, whose parent is not imported (setuptools._vendor)
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [path for place in places if os.path.isdir(path := os.path.join(place, last))]
        return spec


@cache
def _imported(path: Path, saved: int, name: str) -> set[str]:
    """The names in a source file's import statements, including those in functions: modules, the packages that contain
    them, and possibly objects in modules.
    """
    del saved  # ``saved`` is part of the cache's key, because the source may change
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
    # Importing a module also runs the code of the packages that contain it.
    return {part for whole in found for part in itertools.accumulate(whole.split("."), "{}.{}".format) if part}


def _referred(module: ModuleType | None) -> set[str]:
    if module is None:
        return set()
    names = set()
    for value in user_values.set_by_program(vars(module)).values():
        try:
            found = value.__name__ if issubclass(type(value), ModuleType) else getattr(value, "__module__", None)
        except Exception as error:  # noqa: BLE001 - a proxy, whose attributes run the user's code
            interruptions.pass_on(error)
            continue
        # Leave out submodules: a package has an attribute for each imported submodule, and a worker may have imported
        # different ones.
        if isinstance(found, str) and not found.startswith(f"{module.__name__}."):
            names.add(found)
    return names


def import_modules(names: str, digest: str) -> None:
    """Import the modules that a client named. Raises ValueError if their sources or values differ."""
    modules = names.split(",")
    for name in modules:
        if name.startswith("/"):
            torch.ops.load_library(name)
        else:
            importlib.import_module(name)
    here = modules_digest(modules)
    if here != digest:
        raise ValueError(
            f"the sources of {names}, or values or operators set after the import, differ from the capture"
        )
