"""Which functions of the program have not run yet in this process: what they say cannot have changed anything.

CPython 3.11 counts the calls of each code object until it makes a faster form of it (PEP 659), from -8 up to 0. That is
``co_warmup`` of PyCodeObject (Include/cpython/code.h), which no attribute shows: so it is read where it lies, after a
check that it lies there. Other versions of Python say nothing of that kind before somebody asks
(``sys.monitoring``), so there every function counts as one that ran.
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
from precompiled.packages.describe.places import codes_of

# The qualified name of a function, and the first line of it in its file.
Place = tuple[str, int]

_NEVER = -8  # QUICKENING_INITIAL_WARMUP_VALUE (Include/internal/pycore_code.h)
_OFFSET = 52  # three words of PyVarObject, co_consts, co_names, co_exceptiontable, and the int co_flags


class Module:
    """The functions of one module that had not run at the last look, fewer each time."""

    def __init__(self, module: ModuleType, path: str) -> None:
        self._waiting = {place_of(code): code for code in _functions(module, path)} if _counts() else {}

    def unrun(self) -> dict[Place, CodeType]:
        for place in [place for place, code in self._waiting.items() if has_run(code)]:
            del self._waiting[place]
        return dict(self._waiting)


def has_run(code: CodeType) -> bool:
    """Whether a call of the function has begun in this process; true where this Python does not tell."""
    return not _counts() or _calls(code) != _NEVER


def _functions(module: ModuleType, path: str) -> Iterator[CodeType]:
    """The code of the functions that a module's file defines, as the module and its classes hold them now.

    Also of what decorators wrap; program_text.py knows which of them do no more.
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
    """Whether this Python counts calls, where this file looks for them."""
    if sys.implementation.name != "cpython" or sys.version_info[:2] != (3, 11):
        return False
    scope: dict[str, Any] = {}
    exec("def function(): pass", scope)  # a function that cannot have run
    code = scope["function"].__code__
    before = _calls(code)
    scope["function"]()
    return (before, _calls(code)) == (_NEVER, _NEVER + 1)
