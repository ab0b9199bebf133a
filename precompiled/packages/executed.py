"""Finds the functions of the program that have not run. The bodies of these functions have had no effect.

CPython 3.11 counts the calls of each code object, from -8 up to 0, until it specializes the code (PEP 659). The counter
is ``co_warmup`` of PyCodeObject (Include/cpython/code.h). No attribute exposes the counter, so this file reads it from
memory, after a check of the counter's offset. Other versions of Python count no calls by default, so this file treats
every function as run.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

from precompiled.core.looks import is_a, module_named, namespace_of
from precompiled.packages.describe.object_paths import codes_of

# A function's qualified name, and its first line in its file.
Place = tuple[str, int]

_NEVER = -8  # QUICKENING_INITIAL_WARMUP_VALUE (Include/internal/pycore_code.h)
_OFFSET = 52  # three words of PyVarObject, co_consts, co_names, co_exceptiontable, and the int co_flags


class Module:
    """The functions of one module that have not run yet."""

    def __init__(self, module: ModuleType, path: str) -> None:
        self._waiting = {place_of(code): code for code in _functions(module, path)} if _counts() else {}

    def unrun(self) -> dict[Place, CodeType]:
        for place in [place for place, code in self._waiting.items() if has_run(code)]:
            del self._waiting[place]
        return dict(self._waiting)


def has_run(code: CodeType) -> bool:
    """Whether a call of the function has begun in this process. Always true if this Python does not count calls."""
    return not _counts() or _calls(code) != _NEVER


def _functions(module: ModuleType, path: str) -> Iterator[CodeType]:
    """Yield the code of a module's functions that are defined in the module's file.

    Includes functions that decorators have wrapped. program_text.py excludes decorators that may replace the function
    or read its source.
    """
    name = module_named(module)
    for value in list(namespace_of(module).values()):
        if not is_a(value, type) or namespace_of(value).get("__module__") == name:
            yield from (code for code in codes_of(value) if os.path.abspath(code.co_filename) == path)


def place_of(code: CodeType) -> Place:
    return code.co_qualname, code.co_firstlineno


def _calls(code: CodeType) -> int:
    return ctypes.c_short.from_address(id(code) + _OFFSET).value


@functools.cache
def _counts() -> bool:
    """Whether this Python counts calls at the offset that this file reads."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] != (3, 11):
        return False
    scope: dict[str, Any] = {}
    exec("def function(): pass", scope)  # a new function cannot have run
    code = scope["function"].__code__
    before = _calls(code)
    scope["function"]()
    return (before, _calls(code)) == (_NEVER, _NEVER + 1)
