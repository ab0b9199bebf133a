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
from precompiled.packages.describe.codes import DESCRIPTORS, code_digest, outermost


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
                file = getattr(module, "__file__", None)
                if isinstance(file, str):
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
    if isinstance(value, types.FunctionType):
        yield from codes_within(value.__code__)
        yield from _codes_of(getattr(value, "__wrapped__", None), seen, depth + 1)
        for cell in value.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            if callable(content) and not isinstance(content, type):
                yield from _codes_of(content, seen, depth + 1)
    elif isinstance(value, DESCRIPTORS):
        for name in ("__func__", "fget", "fset", "fdel", "func"):
            yield from _codes_of(getattr(value, name, None), seen, depth + 1)
    elif isinstance(value, type):
        for member in list(vars(value).values()):
            if isinstance(member, (types.FunctionType, *DESCRIPTORS)):
                yield from _codes_of(member, seen, depth + 1)
    elif value is not None and not isinstance(value, types.ModuleType):
        for name in ("__func__", "__wrapped__", "func", "fn", "__code__"):
            inner = getattr(value, "__dict__", {}).get(name) or (
                getattr(value, name, None) if isinstance(value, (functools.partial, types.MethodType)) else None
            )
            if inner is not None:
                yield from _codes_of(inner, seen, depth + 1)
        wrapped = getattr(value, "__wrapped__", None) if type(value).__module__ == "functools" else None
        yield from _codes_of(wrapped, seen, depth + 1)


def locals_digest(kinds: dict[str, type]) -> str:
    """Names and types of a frame's locals: for frames that are not compiled, whose values are of no interest."""
    shown = sorted((name, kind.__module__, kind.__qualname__) for name, kind in kinds.items())
    return hashlib.sha256(repr(shown).encode()).hexdigest()
