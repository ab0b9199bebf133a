"""What the type of a value tells: whether it is the same in each process, and whether it may hold more than is seen."""

from __future__ import annotations

import abc
import collections
import contextlib
import inspect
import re
import struct
import sys
import types
from _abc import _get_dump  # type: ignore[import-not-found]  # of CPython's abc
from typing import Any

from precompiled.core.definitions import codes_within
from precompiled.core.looks import attribute_of, is_a, namespace_of
from precompiled.packages.describe.codes import globals_read

# Packages whose metaclasses (of enums, of TypedDict) are the same in each process of one environment.
INSTALLATION = frozenset({"builtins", "torch", "typing_extensions", *sys.stdlib_module_names})
OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType,
        types.MemberDescriptorType)  # fmt: skip
ATOMS = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
CONTAINERS = (
    tuple, list, dict, types.MappingProxyType, set, frozenset, slice, range, re.Pattern,
    collections.OrderedDict, collections.defaultdict, collections.deque,
)  # fmt: skip
# Builtins that give a value which no description has.
IMPURE = frozenset({"open", "input", "globals", "locals", "eval", "exec", "id", "__import__", "breakpoint"})
_OF_SETS = frozenset({"__contains__", "isdisjoint", "issubset", "issuperset"})


def state_of(value: Any) -> dict[str, Any] | None:
    """The attributes and slots of an instance of a Python class; None where it may hold more than these."""
    state = dict(namespace_of(value))
    if type(value) is contextlib._GeneratorContextManager and _is_unused(state.get("gen")):
        del state["gen"]  # made of func, args and kwds; a decorator makes another one for each call
    if _holds_more(type(value)):
        return None
    for base in type(value).__mro__[:-1]:
        if not is_heap(base):
            return None
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if name not in ("__dict__", "__weakref__"):
                state[name] = attribute_of(value, name, "absent")
    return None if "_parameters" in state else state  # not of an nn.Module: its tensors are no constants


def _is_unused(generator: Any) -> bool:
    return type(generator) is types.GeneratorType and inspect.getgeneratorstate(generator) == inspect.GEN_CREATED


def says_all(value: Any, method: str) -> bool:
    """Whether a method of ``value`` is told by its name and the value: ``keyword.iskeyword`` is one of a frozenset.

    Not where it gives the members of a set in their order, which is another one in each process.
    """
    if type(value) is frozenset:
        return method in _OF_SETS and all(type(item) in ATOMS for item in value)
    return type(value) in (str, bytes, int, float, complex, bool)


def global_unseen(function: Any) -> str | None:
    """A global, or an impure builtin, that a function reads which runs without a trace; None where it reads none."""
    if not isinstance(function, types.FunctionType):
        return None
    read = {name for code in codes_within(function.__code__) for name in globals_read(code)}
    return min(read & {*function.__globals__, *IMPURE}, default=None)


def is_heap(kind: type) -> bool:
    return bool(kind.__flags__ & (1 << 9))  # Py_TPFLAGS_HEAPTYPE: made by a class statement


def virtual_subclasses(kind: type) -> list[str]:
    """The classes of programs that are registered as subclasses of an abstract class, or of a subclass of it."""
    found: set[str] = set()
    looked, left = {kind}, [kind]
    while left:
        at = left.pop()
        if is_a(at, abc.ABCMeta):
            registered = {one for reference in _get_dump(at)[0] if (one := reference()) is not None}
            found |= {f"{one.__module__}.{one.__qualname__}" for one in registered if not is_installed(one)}
            more = {*registered, *type.__subclasses__(at)} - looked
            looked |= more
            left += more
    return sorted(found)


def is_installed(kind: type) -> bool:
    """Whether a class is of Python or torch, and so the same in each process of one environment."""
    return kind.__module__.split(".")[0] in INSTALLATION


def _holds_more(kind: type) -> bool:
    """Whether instances have room for more than attributes and slots: a lock, a compiled regular expression.

    Nothing else tells types of C extensions from Python classes. Computed as object.__reduce_ex__(2) does (CPython,
    Objects/typeobject.c: object_getstate_default).
    """
    pointer = struct.calcsize("P")
    members = (member for base in kind.__mro__ for member in vars(base).values())
    slots = sum(isinstance(member, types.MemberDescriptorType) for member in members)
    room = object.__basicsize__ + pointer * (slots + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0))
    return kind.__itemsize__ != 0 or kind.__basicsize__ > room


def is_torchs_module(module: str | None) -> bool:
    return (module or "").split(".")[0] == "torch"
