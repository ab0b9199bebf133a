"""Classifies types: whether a type is the same in each process, and whether all state of its instances is readable."""

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

from precompiled.core.definitions import codes_within
from precompiled.core.looks import attribute_of, is_a, namespace_of, slots_of
from precompiled.packages.describe.codes import globals_read

# Top-level modules whose metaclasses (of enums, of TypedDict) are the same in each process of one environment.
INSTALLATION = frozenset({"builtins", "torch", "typing_extensions", *sys.stdlib_module_names})
OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType)
ATOMS = (bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented))
CONTAINERS = (
    tuple,
    list,
    dict,
    types.MappingProxyType,
    set,
    frozenset,
    slice,
    range,
    re.Pattern,
    collections.OrderedDict,
    collections.defaultdict,
    collections.deque,
)
# Builtins whose result no description covers.
IMPURE = frozenset({"open", "input", "globals", "locals", "eval", "exec", "id", "__import__", "breakpoint"})
_OF_SETS = frozenset({"__contains__", "isdisjoint", "issubset", "issuperset"})


def state_of(value: object) -> dict[str, object] | None:
    """The attributes and slots of an instance of a Python class. None if the instance may hold further state."""
    state = dict(namespace_of(value))
    if type(value) is contextlib._GeneratorContextManager and _is_unused(state.get("gen")):
        del state["gen"]  # a decorator makes this generator from func, args and kwds for each call
    if _holds_more(type(value)):
        return None
    for base in type(value).__mro__[:-1]:
        if not is_heap(base):
            return None
        for name in slots_of(base):
            state[name] = attribute_of(value, name, "absent")
    return None if "_parameters" in state else state  # an nn.Module: its tensors are not constants


def _is_unused(generator: object) -> bool:
    return type(generator) is types.GeneratorType and inspect.getgeneratorstate(generator) == inspect.GEN_CREATED


def says_all(value: object, method: str) -> bool:
    """Whether the value and the method's name describe a bound method completely.

    True for ``keyword.iskeyword``, for example, a method of a frozenset. False for methods that return a set's items,
    because their order differs between processes.
    """
    if type(value) is frozenset:
        return method in _OF_SETS and all(type(item) in ATOMS for item in value)
    return type(value) in (str, bytes, int, float, complex, bool)


def global_unseen(function: object) -> str | None:
    """Return the name of a global, or of a builtin in IMPURE, that an untraced function reads. None if it reads
    neither.
    """
    if not isinstance(function, types.FunctionType):
        return None
    read = {name for code in codes_within(function.__code__) for name in globals_read(code)}
    return min(read & {*function.__globals__, *IMPURE}, default=None)


def is_heap(kind: type) -> bool:
    return bool(kind.__flags__ & (1 << 9))  # Py_TPFLAGS_HEAPTYPE: made by a class statement


def virtual_subclasses(kind: type) -> list[str]:
    """The program's classes that are registered as virtual subclasses of an abstract class or its subclasses."""
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
    """Whether a class belongs to Python or torch, and so is the same in each process of one environment."""
    return kind.__module__.split(".")[0] in INSTALLATION


def _holds_more(kind: type) -> bool:
    """Whether instances have room for state outside attributes and slots.

    True for a lock, for example. No other property distinguishes types of C extensions from Python classes. The
    computation is that of object.__reduce_ex__(2) (CPython, Objects/typeobject.c: object_getstate_default).
    """
    pointer = struct.calcsize("P")
    members = (member for base in kind.__mro__ for member in vars(base).values())
    slots = sum(isinstance(member, types.MemberDescriptorType) for member in members)
    room = object.__basicsize__ + pointer * (slots + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0))
    return kind.__itemsize__ != 0 or kind.__basicsize__ > room


def is_torchs_module(module: str | None) -> bool:
    return (module or "").split(".")[0] == "torch"
