"""Describes the part of a module's state that its functions use but its source does not determine.

The state consists of:

- numbers and strings at the top level of the module, in its classes, and in objects that it holds (a configuration, an
  ``argparse.Namespace``)
- the functions and classes to which its names refer (a program may choose among several), and the values in these
- the functions that are registered for its operators

Other values (modules, locks, tensors, pytest's marks and fixtures) are left out. Environment variables are also left
out, because a worker has few of the client's variables.

Private names: torch._ops.{OpOverload, OpOverloadPacket}, torch._library.custom_ops.OPDEFS,
torch._library.custom_ops.CustomOpDef.{_qualname, _init_fn, _schema, _abstract_fn,
_setup_context_fn, _backward_fn, _vmap_fn, _backend_fns, _torch_dispatch_fns, _autocast_dtype (2.13, 2.15),
_autocast_cpu_dtype (2.11), _autocast_cuda_dtype (2.11)}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import fractions
import functools
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch._library import custom_ops
from torch._ops import OpOverload, OpOverloadPacket

from precompiled.core import interruptions
from precompiled.core.looks import slots_of

# Types whose repr describes a value completely. Values of the types in _PLAIN may also be keys, and may be in
# containers of any size.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device})
_BY_REPR = frozenset(
    {
        range,
        decimal.Decimal,
        fractions.Fraction,
        torch.memory_format,
        torch.layout,
        datetime.date,
        datetime.time,
        datetime.datetime,
        datetime.timedelta,
    }
)
_CACHED: type = type(functools.lru_cache(len))
_FUNCTIONS = frozenset({types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, _CACHED})
_WRAPPERS = frozenset({staticmethod, classmethod, property})
_OBJECTS = (types.SimpleNamespace, argparse.Namespace)
_AUTOCAST = ("_autocast_dtype", "_autocast_cpu_dtype", "_autocast_cuda_dtype")
# unittest sets these attributes on a test class when it runs the tests. A worker runs no tests.
_SET_BY_UNITTEST = frozenset({"_classSetupFailed", "_class_cleanups", "tearDown_exceptions"})
# Python sets these names in a module. Their values name places and loaders, or depend on what has run so far.
_SET_BY_PYTHON = frozenset(
    """__annotate__ __annotations__ __builtins__ __cached__ __conditional_annotations__ __dict__ __file__ __loader__
    __name__ __package__ __path__ __spec__ __warningregistry__""".split()
)
# Dynamo and packages/ put these names into the globals of the functions that they trace. A worker traces nothing.
_SET_BY_DYNAMO = re.compile(
    r"__(builtins_dict__|gen_rand_values|warnings_warn_wrapper|(resume|comprehension_\w+)_at)_\d+(_\d+)*"
    r"|__subclass_\w+_\d+_c\d+|__compiled_fn_\d+_\w+|__precompiled_\w+"
)
# Attributes that torch sets on a function: at the function's first call, or with the function's address as the value.
_SET_BY_TORCH = frozenset({"__dynamo_disable", "_torchdynamo_wrapper_id"})
_LEFT_OUT = Ellipsis  # replaces a value that is left out; its repr is the same in every process
MAX_DEPTH = 4
# How many values of one module are read. Values in lists and dictionaries of plain values do not count.
MAX_LOOKED_AT = 10_000


def values(module: str) -> str:
    """Return a module's current values as text.

    A program may have changed the values that the source sets, but a worker has exactly these. If a worker's text
    differs, the worker refuses the graph, and the client compiles the graph in process.
    """
    found = sys.modules.get(module)
    if found is None:
        return ""
    look = _Look(module)
    return repr((look.items(set_by_program(vars(found)), 0), [look.registered(*item) for item in _operators(module)]))


def set_by_program(variables: Mapping[str, Any]) -> dict[str, Any]:
    """A module's global variables, without those that Python, Dynamo or pytest set in it."""
    return {
        name: value
        for name, value in list(variables.items())
        if name not in _SET_BY_PYTHON
        and name.isidentifier()  # pytest sets "@pytest_ar" and "@py_builtins", and Dynamo "___module_math_140_c0/0"
        and not _SET_BY_DYNAMO.fullmatch(name)
        and not _is_alias_of_dynamo(name, value)
    }


def _is_alias_of_dynamo(name: str, value: Any) -> bool:
    """Whether Dynamo has put a module into the globals of a function, to guard on the module."""
    if not name.startswith("__import_") or not issubclass(type(value), types.ModuleType):
        return False
    return name == f"__import_{value.__name__.replace('.', '_dot_')}"


class _Look:
    """Reads the values of one module, up to a bound. Every process leaves out the same values."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._left = MAX_LOOKED_AT

    def shown(self, value: object, depth: int) -> object:
        try:
            return self._shown(value, depth)
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; such a value is left out
            interruptions.pass_on(error)
            return _LEFT_OUT

    def _shown(self, value: Any, depth: int) -> Any:
        kind = type(value)  # isinstance() would give the type that a proxy stands for
        self._left -= 1
        if _is_plain(value):
            return repr(value)
        if depth > MAX_DEPTH or self._left < 0:
            return _LEFT_OUT
        if issubclass(kind, enum.Enum):
            return [kind.__qualname__, value.name, self.shown(value.value, depth + 1)]
        if kind in _BY_REPR or _is_numpys(kind):
            return repr(value)
        if kind in _FUNCTIONS:
            return self._function(value, depth)
        if kind in _WRAPPERS:
            wrapped = value.fget if kind is property else value.__func__
            return [kind.__qualname__, self._function(wrapped, depth)]
        if issubclass(kind, (OpOverload, OpOverloadPacket)):
            return str(value)
        if issubclass(kind, custom_ops.CustomOpDef):
            return value._qualname
        if issubclass(kind, (tuple, list, collections.deque)):
            return [kind.__qualname__, *self._some(value, depth)]
        if issubclass(kind, (set, frozenset)):
            return [kind.__qualname__, *sorted(map(repr, self._some(value, depth)))]
        if issubclass(kind, (dict, types.MappingProxyType)):
            return [kind.__qualname__, *self.items(value, depth)]
        if issubclass(kind, type):
            named = [kind.__qualname__, value.__module__, value.__qualname__]
            if value.__module__ != self._module:
                return named
            special = [
                (name, self.shown(vars(value)[name], depth))
                for name in sorted(vars(value))
                if name.startswith("__") and type(vars(value)[name]) in _FUNCTIONS | _WRAPPERS
            ]
            # Libraries keep ids of objects in special attributes (``__pydantic_core_schema__``).
            attributes = {
                name: held
                for name, held in vars(value).items()
                if not (name.startswith("__") and name.endswith("__")) and name not in _SET_BY_UNITTEST
            }
            return [*named, *special, *self.items(attributes, depth)]
        if kind in _OBJECTS or issubclass(kind, torch.nn.Module) or _is_of_the_users(kind):
            slots = [name for base in kind.__mro__ if "__slots__" in vars(base) for name in slots_of(base)]
            held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
            plain = [base.__repr__(value) for base in (bool, int, float, complex, str, bytes) if issubclass(kind, base)]
            return [kind.__qualname__, *plain, *self.items({**getattr(value, "__dict__", {}), **held}, depth)]
        return _LEFT_OUT

    def items(self, found: Mapping[Any, Any], depth: int) -> list[Any]:
        named = sorted((str(key), key) for key in found if type(key) in _PLAIN)
        pairs = [(name, self.shown(found[key], depth + 1)) for name, key in named]
        return [pair for pair in pairs if pair[1] is not _LEFT_OUT]

    def _some(self, found: Iterable[Any], depth: int) -> list[object]:
        return [item for item in (self.shown(value, depth + 1) for value in found) if item is not _LEFT_OUT]

    def registered(self, name: str, definition: Any) -> object:
        """The functions behind a custom operator. A program may choose these functions when it starts."""
        single = ("_init_fn", "_abstract_fn", "_setup_context_fn", "_backward_fn", "_vmap_fn")
        functions = [getattr(definition, attribute, None) for attribute in single]
        for table in (getattr(definition, attribute, {}) for attribute in ("_backend_fns", "_torch_dispatch_fns")):
            functions += [table[key] for key in sorted(table, key=str)]
        types_ = [getattr(definition, attribute, None) for attribute in _AUTOCAST]
        return name, definition._schema, [self._function(function, 0) for function in functions], repr(types_)

    def _function(self, function: Any, depth: int) -> Any:
        """Describe a function by its place in the sources, its defaults, its closure and its attributes. Describe any
        other callable by its parts.
        """
        kind = type(function)
        if depth > MAX_DEPTH:
            return kind.__qualname__
        if kind is types.MethodType:
            return [self._function(function.__func__, depth + 1), self.shown(function.__self__, depth + 1)]
        if kind is functools.partial:
            return [self._function(function.func, depth + 1), self._given(function.args, function.keywords, depth)]
        if kind is _CACHED:
            return [kind.__qualname__, self._function(function.__wrapped__, depth + 1)]
        if kind is types.BuiltinFunctionType:
            return [function.__module__, function.__qualname__, self.shown(function.__self__, depth + 1)]
        if kind is not types.FunctionType:
            shown = self.shown(function, depth)
            return [kind.__qualname__, shown if shown is not _LEFT_OUT else getattr(function, "__qualname__", "")]
        code = function.__code__
        held = []
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty cell
                content = cell.cell_contents
                held.append(self._function(content, depth + 1) if callable(content) else self.shown(content, depth + 1))
        held = [item for item in held if item is not _LEFT_OUT]
        defaults = self._given(function.__defaults__, function.__kwdefaults__, depth)
        where = [function.__module__, function.__qualname__, code.co_firstlineno]
        attributes = {name: value for name, value in vars(function).items() if name not in _SET_BY_TORCH}
        return [*where, defaults, held, self.items(attributes, depth)]

    def _given(self, values: tuple[object, ...] | None, named: Mapping[str, object] | None, depth: int) -> list[object]:
        return self.items({**dict(enumerate(values or ())), **(named or {})}, depth)


def _operators(module: str) -> Iterator[tuple[str, object]]:
    for name, definition in sorted(custom_ops.OPDEFS.items()):
        if getattr(definition._init_fn, "__module__", None) == module:
            yield name, definition


def _is_plain(value: Any, depth: int = 0) -> bool:
    kind = type(value)
    if kind in (tuple, list) and depth <= MAX_DEPTH:
        return all(_is_plain(item, depth + 1) for item in value)
    if kind is dict and depth <= MAX_DEPTH:
        return all(_is_plain(item, depth + 1) for pair in value.items() for item in pair)
    return kind in _PLAIN


def _is_numpys(kind: type) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, (numpy.generic, numpy.dtype))


def _is_of_the_users(kind: type) -> bool:
    root = kind.__module__.split(".")[0]
    return root not in sys.stdlib_module_names and root not in ("torch", "triton", "numpy", "_pytest")
