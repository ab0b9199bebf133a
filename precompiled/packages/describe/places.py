"""Where the code of a trace is found again: from a module's namespace, by names."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

from precompiled.core.definitions import codes_within
from precompiled.core.looks import attribute_of, is_a, namespace_of
from precompiled.packages.describe.codes import DESCRIPTORS, code_digest, outermost

_CACHE = type(functools.lru_cache(lambda: None))  # of C, with the function that it wraps among its attributes


class Places:
    """Where the code objects of a trace are found from a module's namespace, so that a later process finds its own."""

    def __init__(self) -> None:
        self._by_file: dict[str, str] | None = None

    def place(self, code: types.CodeType) -> list[Any] | None:
        """``[module, [attributes ...]]`` of the function that has or holds ``code``; None where no name leads to it."""
        # A notebook's cell and a piped program say no file that a module has.
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
    """Digests of all code that is found at a place now: the function's, of what it wraps, and of what is inside."""
    return {code_digest(code) for code in found_at(place)}


def found_at(place: list[Any]) -> list[types.CodeType]:
    """The code itself, in the order in which it is found."""
    module, attributes = place
    found: Any = sys.modules.get(module)
    if found is None:
        try:
            found = importlib.import_module(module)  # as the trace did, when it met an import in a function
        except Exception:  # noqa: BLE001 - whatever the user's module raises: then nothing is there
            return []
    for name in attributes:
        try:
            found = inspect.getattr_static(found, name)
        except AttributeError:
            return []
    return list(codes_of(found))


def codes_of(value: Any) -> Iterator[types.CodeType]:
    """The code of a function or class, of what it wraps, and of what is inside."""
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
    """Names and types of a frame's locals: for frames that are not compiled, whose values are of no interest."""
    shown = sorted((name, kind.__module__, kind.__qualname__) for name, kind in kinds.items())
    return hashlib.sha256(repr(shown).encode()).hexdigest()
