"""Names code by module and attributes, so that a later process finds the same code."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

from precompiled.core import interruptions
from precompiled.core.definitions import codes_within
from precompiled.core.looks import attribute_of, is_a, namespace_of
from precompiled.packages.describe.codes import DESCRIPTORS, code_digest, outermost

# The type of a function with the decorator functools.lru_cache. The attribute ``__wrapped__`` of such a function is the
# original function.
_CACHE = type(functools.lru_cache(lambda: None))


class Places:
    """Finds the places of code objects: names by which a later process finds the same code."""

    def __init__(self) -> None:
        self._by_file: dict[str, str] | None = None

    def place(self, code: types.CodeType) -> list[Any] | None:
        """``[module, [attributes ...]]`` of the function that is or contains ``code``; None if there is no name."""
        # A notebook's cell or a piped program has a file name that belongs to no module.
        module = self.module_of(code.co_filename) or "__main__"
        parts = outermost(code).split(".")
        for length in range(len(parts), 0, -1):
            place = [module, parts[:length]]
            if code_digest(code) in codes_at(place):
                return place
        return None

    def module_of(self, filename: str) -> str | None:
        if self._by_file is None:
            self._by_file = {}
            for name, module in list(sys.modules.items()):
                file = namespace_of(module).get("__file__")
                if type(file) is str:
                    self._by_file.setdefault(file, name)
        return self._by_file.get(filename)


def codes_at(place: list[Any]) -> set[str]:
    """The present digests of all code at a place: the function, the functions that it wraps, and inner functions."""
    return {code_digest(code) for code in found_at(place)}


def found_at(place: list[Any]) -> list[types.CodeType]:
    """The code objects at a place, in the order of the search."""
    module, attributes = place
    found: object = sys.modules.get(module)
    if found is None:
        try:
            found = importlib.import_module(module)  # the trace may have run an import inside a function
        except Exception as error:  # noqa: BLE001 - the user's module may raise anything
            interruptions.pass_on(error)
            return []
    for name in attributes:
        try:
            found = inspect.getattr_static(found, name)
        except AttributeError:
            return []
    return list(codes_of(found))


def codes_of(value: object) -> Iterator[types.CodeType]:
    """The code of a function or class, of functions that it wraps, and of inner functions."""
    return _codes_of(value, set(), 0)


def _codes_of(value: Any, seen: set[int], depth: int) -> Iterator[types.CodeType]:
    if id(value) in seen or depth > 8:
        return
    seen.add(id(value))
    if is_a(value, types.FunctionType):
        yield from codes_within(value.__code__)
        yield from _codes_of(namespace_of(value).get("__wrapped__"), seen, depth + 1)
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            if callable(content) and not is_a(content, type):
                yield from _codes_of(content, seen, depth + 1)
    elif is_a(value, DESCRIPTORS):
        for name in ("__func__", "fget", "fset", "fdel", "func"):
            yield from _codes_of(attribute_of(value, name), seen, depth + 1)
    elif is_a(value, type):
        for member in list(namespace_of(value).values()):
            if is_a(member, (types.FunctionType, *DESCRIPTORS)):
                yield from _codes_of(member, seen, depth + 1)
    elif value is not None and not is_a(value, types.ModuleType):
        held, of_c = namespace_of(value), is_a(value, (functools.partial, types.MethodType))
        for name in ("__func__", "__wrapped__", "func", "fn", "__code__"):
            inner = held.get(name)
            if inner is None and of_c:
                inner = attribute_of(value, name)
            if inner is not None:
                yield from _codes_of(inner, seen, depth + 1)
        wrapped = attribute_of(value, "__wrapped__") if type(value) is _CACHE else None
        yield from _codes_of(wrapped, seen, depth + 1)


def locals_digest(kinds: dict[str, type]) -> str:
    """Return a digest of the names and types of a frame's locals.

    Entries of skipped frames contain this digest. Values are left out, because they do not affect whether Dynamo skips
    a frame.
    """
    shown = sorted((name, kind.__module__, kind.__qualname__) for name, kind in kinds.items())
    return hashlib.sha256(repr(shown).encode()).hexdigest()
