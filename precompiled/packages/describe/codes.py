"""Computes digests of code objects, without files and lines, and finds the globals that code reads."""

from __future__ import annotations

import dis
import functools
import hashlib
import sys
import types
from collections.abc import Callable
from typing import TypeVar

from precompiled.packages.describe.errors import NotPortable

_T = TypeVar("_T")
# Types of class attributes that hold functions.
DESCRIPTORS = (staticmethod, classmethod, property, functools.cached_property, functools.partialmethod)


class _Exactly:
    """A dictionary key that compares a code object by identity.

    Code objects with a dictionary among their constants have no hash.
    """

    __slots__ = ("code",)

    def __init__(self, code: types.CodeType) -> None:
        self.code = code

    def __hash__(self) -> int:
        return id(self.code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Exactly) and self.code is other.code


def _once_for_each_code(function: Callable[[types.CodeType], _T]) -> Callable[[types.CodeType], _T]:
    known = functools.lru_cache(maxsize=65536)(lambda key: function(key.code))
    return functools.wraps(function)(lambda code: known(_Exactly(code)))


def qualname(code: types.CodeType) -> str:
    """The qualified name of a function. Python 3.10 stores only the plain name."""
    return str(getattr(code, "co_qualname", code.co_name))


def outermost(code: types.CodeType) -> str:
    """The qualified name of the outermost function that is or contains ``code``, such as ``f`` or ``Class.method``."""
    return qualname(code).split(".<locals>")[0]


@_once_for_each_code
def code_digest(code: types.CodeType) -> str:
    """SHA-256 of a code object's instructions, constants and names, without its file and lines."""
    state = hashlib.sha256()
    state.update(code.co_code)
    fields = (
        code.co_name,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        getattr(code, "co_exceptiontable", b""),
        [_constant(value) for value in code.co_consts],
    )
    state.update(repr(fields).encode())
    return state.hexdigest()


def _constant(value: object) -> object:
    if isinstance(value, types.CodeType):
        return ["code", code_digest(value)]
    if isinstance(value, tuple):
        return ["tuple", [_constant(item) for item in value]]
    if (module := module_of_globals(value)) is not None:
        return ["globals", module]
    if type(value) is dict and "__builtins__" in value:
        raise NotPortable("a function has globals that do not belong to a module", code="package-global")
    if isinstance(value, frozenset):  # its order differs between processes
        return ["frozenset", sorted(repr(_constant(item)) for item in value)]
    return [type(value).__qualname__, repr(value)]


@_once_for_each_code
def read_by(code: types.CodeType) -> tuple[frozenset[str], bool]:
    """Return the globals that code reads, and whether the code iterates over a constant set whose order differs between
    processes.

    The result is cached, because reading instructions is slow and frames share most of their inlined code.
    """
    names, ordered = set(), False
    instructions = list(dis.get_instructions(code))
    for number, instruction in enumerate(instructions):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
        elif instruction.opname == "LOAD_CONST" and _has_an_order_of_its_own(instruction.argval):
            ordered |= [item.opname for item in instructions[number + 1 : number + 2]] != ["CONTAINS_OP"]
    return frozenset(names), ordered


def globals_read(code: types.CodeType) -> frozenset[str]:
    """The names that code reads from its globals or the builtins. Excludes reads by inner functions."""
    return read_by(code)[0]


def _has_an_order_of_its_own(value: object) -> bool:
    if not isinstance(value, frozenset) or len(value) < 2:
        return False
    return not all(map(is_hashed_alike, value))


def is_hashed_alike(value: object) -> bool:
    """Whether an item of a set has the same hash in all processes.

    False for texts and for objects whose hash is their address.
    """
    if type(value) is tuple:
        return all(map(is_hashed_alike, value))
    return type(value) in (bool, int, float, complex)


def module_of_globals(value: object) -> str | None:
    """The name of the module that has this dictionary as its globals, or None.

    If Dynamo's bytecode creates a function of the program, the function's globals are a constant of the bytecode.
    """
    name = value.get("__name__") if type(value) is dict else None
    return name if isinstance(name, str) and getattr(sys.modules.get(name), "__dict__", None) is value else None


def namedtuple_scope(name: str) -> dict[str, object]:
    """Make the globals of a namedtuple's ``__new__``.

    These globals belong to no module (Lib/collections/__init__.py).
    """
    return {"_tuple_new": tuple.__new__, "__builtins__": {}, "__name__": name}
