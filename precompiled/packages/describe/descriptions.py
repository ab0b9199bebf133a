"""Describes functions, classes, modules and values as plain data that two processes can compare.

Dynamo guards on identity (``id(x) == 140...``) and on types, and assumes that inlined code stays the same. This is
sound within one process, but a later process must compare content. So each object that a trace depends on is described
in both processes. If two descriptions differ, the entry is not used.

Code is described by its digest (codes.py), so moving a function does not change its description. The description of a
class covers the code of the class and its bases, so a replaced method changes the description. An object without a
description raises ``NotPortable``.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import hashlib
import importlib.machinery
import inspect
import operator
import re
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from precompiled.core.definitions import codes_within
from precompiled.core.files import is_torchs
from precompiled.core.looks import attribute_of, is_a, namespace_of
from precompiled.core.names import object_at
from precompiled.packages.describe.codes import DESCRIPTORS, code_digest
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.describe.kinds import (
    ATOMS,
    CONTAINERS,
    OF_C,
    is_heap,
    is_installed,
    is_torchs_module,
    says_all,
    state_of,
    virtual_subclasses,
)

MAX_DEPTH = 6  # limit of nested levels in a description
MAX_ITEMS = 4096

# Attributes that the description of a wrapper leaves out. The closure of the wrapper also has the values of the first
# three. ``_torchdynamo_wrapper_id`` is an id. Torch sets ``__dynamo_disable`` at the first call (torch/_compile.py).
_OF_A_WRAPPER = frozenset(
    {"__wrapped__", "_torchdynamo_orig_callable", "_torchdynamo_inline", "_torchdynamo_wrapper_id", "__dynamo_disable"}
)
_OF_PYBIND = ("PyCapsule", "pybind11_detail_function_record")  # pybind11 binds functions to these types
# The interpreter or abc writes these attributes. No trace depends on their values, which differ between processes or
# class bodies.
_NOT_OF_A_CLASS = frozenset(
    """
    __abstractmethods__ __annotate__ __annotate_func__ __annotations__ __annotations_cache__ __dict__ __doc__
    __firstlineno__ __module__ __orig_bases__ __parameters__ __qualname__ __static_attributes__ __weakref__ _abc_impl
    """.split()
)
# Modules whose classes are described only by name. Each mock has its own class, which gains members when code reads an
# attribute of the mock. Dynamo does not trace code of unittest.
_BY_NAME = ("builtins", "unittest.mock")
_LONG_NUMBER = re.compile(r"\b\d{8,}\b")
_OF_OPERATOR = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
_OF_A_MEMBER = frozenset({"_value_", "_name_", "_sort_order_", "__objclass__", "name", "value"})


def _nothing(_value: object) -> object:
    return None


# A function that describes how torch's registries treat a class. value_facts.py sets this variable, because this folder
# imports no torch.
registered: Callable[[type], object] = _nothing
# A function that describes process groups, meshes and placements as plain data, and returns None for other values.
# packages/dynamo/ranks.py sets this variable.
describe_distributed: Callable[[Any], Any] = _nothing


class Descriptions:
    """Makes and caches descriptions for one frame. The program may replace a method before the next frame."""

    def __init__(self, before: Mapping[int, str] | None = None) -> None:
        """``before`` maps the id of a code object to a digest that replaces the code's own digest.

        ``before`` contains the functions that had not run when the entry was recorded and have not run in this process.
        Their digests are the ones in the entry.
        """
        self._before = before or {}
        self._classes: dict[type, list[object]] = {}
        self._functions: dict[tuple[int, type | None], list[object]] = {}
        self._objects: dict[int, list[object]] = {}
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # keeps described objects alive, so that ids stay unique
        # Digests of all code that is part of a description.
        self.covered: set[str] = set()

    # ------------------------------------------------------------------ identity

    def recount(self) -> None:
        """Forget all that depends on the order of calls to this object. Call this method before each entry."""
        self._numbers.clear()
        self._functions.clear()
        self._objects.clear()
        self._classes.clear()

    def number(self, value: object) -> int | None:
        """Return the object's number. Equal numbers mean the same object.

        Objects get the numbers 0, 1, ... in the order in which they are first passed to this method after a recount.

        A trace may distinguish two objects that have equal descriptions (``marker is MARKER``). Returns None for
        constants, whose identity is up to the interpreter.
        """
        if type(value) in ATOMS or type(value) in (tuple, frozenset, slice, range):
            return None
        self._kept.append(value)
        return self._numbers.setdefault(id(value), len(self._numbers))

    def memory(self, address: int) -> int:
        """Return the number of the storage at ``address``. Storages and objects (``number``) share one sequence of
        numbers. Tensors in one storage get one number.
        """
        return self._numbers.setdefault(~address, len(self._numbers))  # ids are not negative, so ~address is not an id

    # ------------------------------------------------------------------ values

    def value(self, value: Any, depth: int = 0) -> Any:
        """Describe a constant by type and value."""
        kind = type(value)
        if kind in ATOMS:
            return [kind.__name__, repr(value)]
        if depth > MAX_DEPTH:
            raise NotPortable(f"a value of {kind.__qualname__} is nested too deeply")
        if kind in (tuple, list):
            self._check_size(value)
            return [kind.__name__, [self.value(item, depth + 1) for item in value]]
        if kind in (set, frozenset):
            self._check_size(value)
            return [kind.__name__, sorted((self.value(item, depth + 1) for item in value), key=repr)]
        if kind in (dict, types.MappingProxyType):
            self._check_size(value)
            return [kind.__name__, [[self.value(k, depth + 1), self.value(v, depth + 1)] for k, v in value.items()]]
        if kind in (collections.OrderedDict, collections.defaultdict):
            made_by = [self.thing(value.default_factory, depth + 1)] if kind is collections.defaultdict else []
            return [kind.__name__, *made_by, self.value(dict(value), depth + 1)]
        if kind is collections.deque:
            return [kind.__name__, value.maxlen, self.value(list(value), depth + 1)]
        if is_a(value, tuple) and hasattr(kind, "_fields"):
            return ["namedtuple", self.a_class(kind), self.value(tuple(value), depth + 1)]
        if kind is re.Pattern:
            return ["pattern", repr(value.pattern), value.flags]
        if kind in (slice, range):
            return [kind.__name__, repr(value)]
        return self.thing(value, depth)

    def thing(self, value: Any, depth: int = 0) -> object:
        """Describe an object on whose identity Dynamo guards."""
        kind = type(value)
        if kind in ATOMS:
            return [kind.__name__, repr(value)]
        if is_a(value, type):
            return self.a_class(value)
        if is_a(value, types.ModuleType):
            return self.module(value)
        if is_a(value, types.FunctionType):
            return self.function(value, depth)
        if is_a(value, types.CodeType):
            self.covered.add(code_digest(value))
            return ["code", value.co_name, code_digest(value)]
        of = attribute_of(value, "__self__")
        if is_a(value, types.BuiltinMethodType) and says_all(of, value.__name__):
            return ["method of a value", self.value(of, depth + 1), value.__name__]
        if (
            is_a(value, (types.MethodType, types.BuiltinMethodType))
            and not is_a(of, (types.ModuleType, type, type(None)))
            and not type(of).__name__.startswith(_OF_PYBIND)
        ):
            raise NotPortable(f"the method {getattr(value, '__qualname__', value)!r} is bound to an object")
        if is_a(value, types.MethodType):
            return ["method", self.thing(value.__self__, depth + 1), self.thing(value.__func__, depth + 1)]
        if is_a(value, enum.Enum):
            more = {name: held for name, held in vars(value).items() if name not in _OF_A_MEMBER}
            return [
                "enum",
                self.a_class(kind),
                value.name,
                self.value(value.value, depth + 1),
                self.value(more, depth + 1) if more else None,
            ]
        if is_a(value, (inspect.Signature, inspect.Parameter)):
            return ["signature", str(value)]
        if is_a(value, importlib.machinery.ModuleSpec):
            return ["module spec", value.name, value.origin]
        if is_a(value, OF_C):
            return [kind.__name__, value.__objclass__.__module__, value.__objclass__.__qualname__, value.__name__]
        if kind in _OF_OPERATOR:
            return ["made by", self.value(value.__reduce__(), depth + 1)]
        if is_a(value, functools.partial):
            return [
                "partial",
                self.thing(value.func, depth + 1),
                self.value(value.args, depth + 1),
                self.value(dict(value.keywords), depth + 1),
            ]
        if kind in CONTAINERS or (is_a(value, tuple) and hasattr(kind, "_fields")):
            return self.value(value, depth)
        named = self._named(value)
        if named is not None:
            return named
        if kind.__module__ == "typing" or kind in (types.GenericAlias, types.UnionType):
            arguments = getattr(value, "__args__", ())
            return ["typing", repr(value), [self.value(item, depth + 1) for item in arguments]]
        if kind is object:
            return ["object"]
        if (data := describe_distributed(value)) is not None:
            return ["self-described", f"{kind.__module__}.{kind.__qualname__}", data]
        state = state_of(value)
        if state is None:
            raise NotPortable(f"an object of {kind.__module__}.{kind.__qualname__} can only be compared by identity")
        known = self._objects.get(id(value))
        if known is None:
            self._kept.append(value)
            # an attribute may refer to the object itself
            self._objects[id(value)] = ["instance again", kind.__qualname__]
            try:
                known = ["instance", self.a_class(kind), self.value(state, depth + 1)]
            except BaseException:
                del self._objects[id(value)]
                raise
            self._objects[id(value)] = known
        return known

    def _named(self, value: object) -> list[object] | None:
        """Describe an importable object of C or torch (a builtin, operator, dtype) by its name, or return None."""
        kind = type(value)
        if kind.__module__.split(".")[0] == "torch":
            if kind.__name__ in ("dtype", "device", "layout", "memory_format", "Size"):
                return [kind.__name__, str(value)]
            if kind.__name__ in ("OpOverload", "OpOverloadPacket"):
                return [kind.__name__, str(value)]
        named = getattr if self._is_of_the_installation(kind) or is_a(value, OF_C) else attribute_of
        module, qualname = named(value, "__module__", None), named(value, "__qualname__", None)
        qualname = qualname or named(value, "__name__", None)
        owner = named(value, "__objclass__", None)  # the class of a slot wrapper or method descriptor
        if isinstance(owner, type) and isinstance(qualname, str):
            return ["descriptor", self.a_class(owner), qualname]
        if is_a(value, types.BuiltinFunctionType):
            of = getattr(value, "__self__", None)
            holder = of.__name__ if isinstance(of, types.ModuleType) else getattr(of, "__qualname__", "")
            return ["builtin", module or "", holder, qualname or ""]
        if self._is_of_the_installation(kind) and isinstance(module, str) and isinstance(qualname, str):
            found = object_at(module, qualname)
            if found is value:
                return ["named", kind.__qualname__, module, qualname]
        wrapped = attribute_of(value, "__wrapped__")  # functools.lru_cache, in C
        if is_a(wrapped, types.FunctionType) and kind.__module__ == "functools":
            return ["wrapper", kind.__qualname__, self.function(wrapped)]
        return None

    @staticmethod
    def _is_of_the_installation(kind: type) -> bool:
        return kind.__module__.split(".")[0] in ("torch", "builtins", "functools", "operator", "numpy")

    def _check_size(self, value: Any) -> None:
        if len(value) > MAX_ITEMS:
            raise NotPortable(f"a {type(value).__qualname__} of {len(value)} items is too large for a comparison")

    # ------------------------------------------------------------------ code

    def code_of(self, function: types.FunctionType) -> list[object]:
        """Describe a function's name, code and defaults, but not its closure, which has guards of its own.

        With torch._dynamo.config.skip_guards_on_constant_func_defaults, as in torch 2.11, literal defaults have no
        guards.
        """
        defaults = dict(enumerate(function.__defaults__ or ())) | (function.__kwdefaults__ or {})
        given = {str(name): self.attribute(value) for name, value in defaults.items()}
        return ["code of", function.__module__, function.__qualname__, self._code(function.__code__), given]

    def function(self, function: types.FunctionType, depth: int = 0, owner: type | None = None) -> list[Any]:
        """Describe a function's name, code, defaults, and the values in its closure.

        ``owner``: the class in whose description the function occurs as a method, if any. A method that calls
        ``super()`` closes over its class. The method's description has a mark in place of the class. Otherwise a
        description would depend on whether it began at the class or at the method.
        """
        key = (id(function), owner)
        known = self._functions.get(key)
        if known is not None:
            return known
        self._kept.append(function)
        shown: list[object] = ["function", function.__module__, function.__qualname__, self._code(function.__code__)]
        self._functions[key] = list(shown)  # the closure may lead back to the function
        try:
            if not is_torchs(function.__code__.co_filename):
                # ``attribute`` describes the parts of a class
                describe = self.value if owner is None else self.attribute
                shown += self._held(function, depth, owner, describe)
                if held := {name: item for name, item in vars(function).items() if name not in _OF_A_WRAPPER}:
                    shown.append(self.attribute(held))
            else:  # entries require torch's version, so only the closure (a wrapped function, in_dims) can differ
                shown += [[], [self._given(cell, depth) for cell in function.__closure__ or ()]]
                if held := {name: item for name, item in vars(function).items() if name not in _OF_A_WRAPPER}:
                    shown.append([[name, self.attribute(item)] for name, item in held.items()])
        except BaseException:
            del self._functions[key]
            raise
        self._functions[key] = shown
        return shown

    def _held(
        self, function: types.FunctionType, depth: int, owner: type | None, describe: Callable[[Any, int], Any]
    ) -> list[object]:
        """The defaults and the closure of a function. ``owner``: as for ``function``."""
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        defaults: dict[str, object] = dict(zip(names[::-1], (function.__defaults__ or ())[::-1], strict=False))
        defaults |= function.__kwdefaults__ or {}
        shown: list[object] = [
            [name, self._describe(describe, value, depth, f"the default argument {name} of {function.__qualname__}")]
            for name, value in defaults.items()
        ]
        cells: list[object] = []
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                held = cell.cell_contents
            except ValueError:
                cells.append("empty")
                continue
            if held is owner and owner is not None:
                cells.append("its class")
            else:
                cells.append(self._describe(describe, held, depth, f"{name} in the closure of {function.__qualname__}"))
        return [shown, cells]

    @staticmethod
    def _describe(describe: Callable[[Any, int], Any], value: object, depth: int, what: str) -> object:
        try:
            return describe(value, depth + 1)
        except NotPortable as reason:
            raise NotPortable(f"{what}: {reason}", code=reason.code) from reason

    def classes_in(self, function: types.FunctionType) -> list[object]:
        """Describe the classes in a closure, including those inside containers and objects. Dynamo does not guard these
        classes.
        """
        found: list[object] = []
        seen: set[int] = set()

        def look(value: Any, depth: int) -> None:
            if id(value) in seen or depth > MAX_DEPTH or len(seen) > MAX_ITEMS or type(value) in ATOMS:
                return
            seen.add(id(value))
            if is_a(value, type):
                found.append(self.a_class(value))
            elif type(value) in (tuple, list, set, frozenset):
                for item in value:
                    look(item, depth + 1)
            elif type(value) in (dict, types.MappingProxyType):
                for item in value.values():
                    look(item, depth + 1)
            elif not is_a(value, types.ModuleType):
                for item in namespace_of(value).values():
                    look(item, depth + 1)

        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                look(cell.cell_contents, 0)
        return found

    def _code(self, code: types.CodeType) -> str:
        for inner in codes_within(code):
            self.covered.add(code_digest(inner))
        return self._before.get(id(code)) or code_digest(code)

    def a_class(self, kind: type) -> list[object]:
        """Describe a class by its name and by all that it and its bases define.

        This includes functions (with defaults and closures) and values. For example, ``Scale().factor`` is a constant
        of the trace: Dynamo has no source for an object that the frame creates, and guards only its class.
        """
        known = self._classes.get(kind)
        if known is not None:
            return known
        shown: list[object] = ["class", kind.__module__, kind.__qualname__]
        self._classes[kind] = shown
        try:
            shown.append(self._class_digest(kind))
        except BaseException:
            del self._classes[kind]  # the description is incomplete
            raise
        return shown

    def _class_digest(self, kind: type) -> str:
        state = hashlib.sha256(f"{self._metaclass(type(kind))}\n".encode())
        if issubclass(kind, enum.Enum) and not is_torchs_module(kind.__module__):
            values = [[name, self.attribute(member.value)] for name, member in kind.__members__.items()]
            state.update(f"{values}\n".encode())
        state.update(f"{registered(kind)} {virtual_subclasses(kind)}\n".encode())
        for base in kind.__mro__:
            state.update(f"{base.__module__}.{base.__qualname__}\n".encode())  # even if the base defines nothing
            if base.__module__ in _BY_NAME or not is_heap(base):
                continue
            plain = not is_torchs_module(base.__module__)
            for name, value in sorted(vars(base).items()):
                if name not in _NOT_OF_A_CLASS:
                    member = self._member(value, plain, base)
                    if name.startswith("__"):
                        member = self._without_ids(member)
                    state.update(f"{base.__qualname__}.{name} {member}\n".encode())
        return state.hexdigest()

    def _without_ids(self, text: str) -> str:
        """Remove ids of classes from the description of a library's data (``__pydantic_core_schema__``)."""

        def replaced(found: re.Match[str]) -> str:
            return "id" if any(found[0] == str(id(kind)) for kind in self._classes) else found[0]

        return _LONG_NUMBER.sub(replaced, text)

    def _metaclass(self, kind: type) -> object:
        if is_installed(kind):
            return f"{kind.__module__}.{kind.__qualname__}"
        return self.a_class(kind)

    def _member(self, value: Any, plain: bool, owner: type) -> str:
        """Describe a member of a class.

        ``plain``: whether values of attributes count. They do not count in torch's classes.
        """
        if is_a(value, types.FunctionType):
            # For a function of torch, only its closure and attributes count.
            return str(self.function(value, owner=owner))
        if is_a(value, DESCRIPTORS):
            inner = [getattr(value, name, None) for name in ("__func__", "fget", "fset", "fdel", "func")]
            codes = [
                self._member(item, plain, owner)
                if is_a(item, (types.FunctionType, *DESCRIPTORS))
                else str(self.attribute(item))
                for item in inner
                if item is not None
            ]
            bound = [self.attribute(getattr(value, name, None)) for name in ("args", "keywords")] if plain else []
            return f"{type(value).__name__} {codes} {bound}"
        if is_a(value, type):
            # Dynamo has no source for a nested class, so the trace contains the class's attributes as constants.
            users = plain and not is_installed(value)
            return str(self.attribute(value)) if users else f"class {value.__module__}.{value.__qualname__}"
        wrapped = getattr(value, "__wrapped__", None) if type(value).__module__ == "functools" else None
        if is_a(wrapped, types.FunctionType):
            return f"{type(value).__name__} {self._member(wrapped, plain, owner)}"
        return str(self.attribute(value)) if plain else type(value).__qualname__

    def attribute(self, value: Any, depth: int = 0) -> object:
        """Describe a value in a class or a closure, even if it contains objects without a description.

        Such an object (a lock, a logger) is described only by its type. All other items of its container are described
        completely. A trace that reads such an object is not kept (unguarded.py).
        """
        try:
            return self.value(value, depth)
        except NotPortable:
            kind = type(value)
        if is_a(value, enum.Enum):
            return ["enum", kind.__module__, kind.__qualname__, value.name, self.attribute(value.value, depth + 1)]
        sized = kind in CONTAINERS or (is_a(value, tuple) and hasattr(kind, "_fields"))
        if depth <= MAX_DEPTH and sized and len(value) <= MAX_ITEMS:
            items = value.items() if hasattr(value, "items") else value
            parts = [self.attribute(item, depth + 1) for item in items]
            made_by = getattr(getattr(value, "default_factory", None), "__qualname__", "")
            return [kind.__qualname__, made_by, sorted(parts, key=repr) if kind in (set, frozenset) else parts]
        if depth <= MAX_DEPTH and kind is dataclasses.Field:
            return ["field", *(self.attribute(getattr(value, name, None), depth + 1) for name in kind.__slots__)]
        if depth <= MAX_DEPTH and kind is functools.partial:
            return ["partial", *(self.attribute(item, depth + 1) for item in (value.func, value.args, value.keywords))]
        if kind is types.FunctionType:
            place = [value.__module__, value.__qualname__, self._code(value.__code__)]
            held = self._held(value, depth, None, self.attribute) if depth <= MAX_DEPTH else []
            return ["parts of", *place, held]
        return ["opaque", kind.__module__, kind.__qualname__]

    def _given(self, cell: types.CellType, depth: int) -> object:
        """Describe the content of a closure's cell if it is a function, container or constant; else return None."""
        try:
            held = cell.cell_contents
        except ValueError:
            return "empty"
        if depth > MAX_DEPTH:
            return "deep"
        given = (*ATOMS, *CONTAINERS, functools.partial, types.FunctionType)
        return self.attribute(held, depth) if is_a(held, given) else None

    def module(self, module: types.ModuleType) -> list[object]:
        """Describe a module by its name.

        The module's objects that a trace used have their own guards and descriptions. The program's digest covers the
        module's file (packages/source_files.py).
        """
        return ["module", module.__name__]
