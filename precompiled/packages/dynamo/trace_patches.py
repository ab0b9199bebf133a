"""Notes what a trace reads. unguarded.py describes the reads that have no guard.

Dynamo guards on most things that it finds, but rarely on things that it does not find. No note may raise an error into
the user's trace. This file installs the wrappers of untraced.py, ordered.py, set_order.py and optimizers.py. Its own
wrappers note:

- Every value that becomes a variable (``VariableBuilder._wrap``), by its source. Dynamo assumes that some of these
  values stay the same: C descriptors, classes in closures, objects in modules of the standard library (os.environ).
- Attributes that Dynamo does not find, or whose existence it tests.
- Keys that a dictionary lacks.
- Reads of whole objects: an object's text, the names in ``dir()``, the keys of a dictionary that becomes a constant or
  a text, or that the frame changes and writes back.
- Values from a class or a function that have neither a source nor a guard.
- Objects under several sources: Dynamo may guard only on the first source.
- Results that Dynamo assumes to be constant: results of importlib.util.find_spec, importlib.metadata.version,
  sys.getrecursionlimit, and of functions under torch._dynamo.assume_constant_result.

Private names: torch._dynamo.variables.builder.{VariableBuilder._wrap, VariableBuilder.__call__,
SourcelessBuilder.create}, torch._dynamo.variables.lazy.LazyVariableTracker.{original_value, original_source},
torch._dynamo.variables.base.VariableTracker.{call_obj_hasattr, var_getattr (2.11, 2.13), tp_getattro_impl (2.15),
source}, torch._dynamo.variables.*.__contains__,
torch._dynamo.variables.dicts.*.getitem_const_raise_exception_if_absent,
torch._dynamo.variables.dicts.ConstDictVariable.{tp_repr_impl (2.15), repr_impl (2.13), debug_repr (2.11),
as_python_constant}, torch._dynamo.variables.builtin.BuiltinVariable.{call_str, call_dir, call_function_handler_cache},
torch._dynamo.side_effects.SideEffects.mutation, torch._dynamo.variables.user_defined.UserDefinedObjectVariable,
torch._dynamo.variables.functions.{SkipFunctionVariable.call_function, PolyfilledFunctionVariable.call_function,
invoke_and_store_as_constant}, torch._dynamo.source.ConstantSource, torch._dynamo.exc.{ObservedAttributeError,
ObservedKeyError}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import torch._dynamo.variables.functions as dynamo_functions
from torch._dynamo.exc import ObservedAttributeError, ObservedKeyError
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.source import ConstantSource
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builder import SourcelessBuilder, VariableBuilder
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

from precompiled.core import interruptions
from precompiled.core.names import object_at
from precompiled.packages.describe.codes import code_digest
from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.describe.kinds import ATOMS
from precompiled.packages.describe.object_paths import codes_at
from precompiled.packages.dynamo import native_calls, optimizers, ordered, set_order, untraced
from precompiled.packages.dynamo.contained_notes import contain_errors
from precompiled.packages.dynamo.guard_facts import NO_KEYS
from precompiled.packages.dynamo.trace_log import TraceLog
from precompiled.torch_internals.patches import Patches

_READS = ("var_getattr", "tp_getattro_impl")
# The name of the method for repr(): the first name is for torch 2.15, the second for 2.13, the third for 2.11. After
# 2.11, debug_repr is only for messages.
_REPR = next(name for name in ("tp_repr_impl", "repr_impl", "debug_repr") if name in vars(ConstDictVariable))
_ALL_OF_IT = (_REPR, "as_python_constant")
# Types of objects whose identity does not matter or is part of their description.
_NEVER_ONE = (
    *ATOMS,
    tuple,
    frozenset,
    slice,
    range,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.CodeType,
)
HAS = "the key"
_SUBSCRIPT = "getitem_const_raise_exception_if_absent"
_OF_THE_PROCESS: tuple[object, ...] = (importlib.util.find_spec, importlib.metadata.version, sys.getrecursionlimit)


def wrap(now: Callable[[], TraceLog | None]) -> Callable[[], None]:
    """Note what this thread's traces read. The notes go to the log ``now()``, if there is one.

    Returns a function that stops this.
    """
    patches = Patches()

    def restore() -> None:
        patches.undo()
        BuiltinVariable.call_function_handler_cache.clear()  # the cache holds replaced methods

    def replace(owner: object, name: str, with_: Callable[[Any, Any], Any]) -> None:
        patches.replace(owner, name, lambda original: functools.wraps(original)(contain_errors(original, with_, now)))

    try:
        _replace_all(replace)
    except BaseException:  # this torch lacks one of the names
        restore()
        raise
    BuiltinVariable.call_function_handler_cache.clear()
    return restore


def _replace_all(replace: Callable[[Any, str, Callable[[Any, Any], Any]], None]) -> None:
    for kind in list(ordered.kinds(VariableTracker)):
        if "call_obj_hasattr" in vars(kind):
            replace(kind, "call_obj_hasattr", _asked_for)
        for name in _READS:
            if name in vars(kind):
                replace(kind, name, _read)
        if _SUBSCRIPT in vars(kind):
            replace(kind, _SUBSCRIPT, _subscripted)
        if "__contains__" in vars(kind):
            replace(kind, "__contains__", _looked_up)
    replace(VariableBuilder, "__call__", _met)
    replace(VariableBuilder, "_wrap", _built)
    replace(LazyVariableTracker, "original_value", _looked_at)
    replace(SourcelessBuilder, "create", _made)
    replace(SideEffects, "mutation", _changed)
    replace(BuiltinVariable, "call_str", _as_text)
    replace(BuiltinVariable, "call_dir", _all_names)
    for name in _ALL_OF_IT:
        if name in vars(ConstDictVariable):
            replace(ConstDictVariable, name, _all_keys)
    for kind in (dynamo_functions.SkipFunctionVariable, dynamo_functions.PolyfilledFunctionVariable):
        replace(kind, "call_function", _called)
    for owner, name, with_ in (
        *untraced.replacements(),
        *ordered.replacements(),
        *set_order.replacements(),
        *optimizers.replacements(),
    ):
        replace(owner, name, with_)
    if hasattr(dynamo_functions, "invoke_and_store_as_constant"):
        replace(dynamo_functions, "invoke_and_store_as_constant", _assumed)


def _built(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    def _wrap(self: Any, value: object) -> object:
        noted = now()
        if noted is not None:
            noted.read(self.source)
            native_calls.meets(value)
        return original(self, value)

    return _wrap


def _met(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Record all sources of an object.

    If a trace reaches an object by a second source, it reuses the variable of the first source, often without a guard
    (guards.make_dupe_guard).
    """

    def __call__(self: Any, value: object) -> object:
        noted = now()
        source = self.source
        if (
            noted is not None
            and source is not None
            and not isinstance(value, (*_NEVER_ONE, VariableTracker))
            and not isinstance(source, ConstantSource)
        ):
            noted.met.setdefault(id(value), (value, {}))[1][source.name] = source
        return original(self, value)

    return __call__


def _looked_at(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Record a function that traced code looks up in a set.

    If the set does not contain the function, Dynamo makes no variable for the function.
    """

    def original_value(self: Any) -> object:
        noted = now()
        if noted is not None:
            noted.read(self.original_source())
        return original(self)

    return original_value


def _looked_up(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    def __contains__(self: Any, key: object) -> object:
        found = original(self, key)
        noted = now()
        source = getattr(self, "source", None)
        if noted is not None and source is not None:
            # A key that a dictionary contains has a source and a guard, so it needs no note. A set's item has no fixed
            # position, so it needs a note.
            if found and not issubclass(self.python_type(), (set, frozenset)):
                return found
            key = untraced.constant(key)
            if is_plain(key):
                noted.keys.append((source, key))
            elif isinstance(key, (type, types.FunctionType)):  # note only this key, because other keys may change
                noted.wholes.append((source, f"{HAS} {key.__module__}.{key.__qualname__}"))
            else:
                noted.wholes.append((source, "keys"))
        return found

    return __contains__


def _made(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    def create(tx: object, value: object) -> object:
        noted = now()
        if noted is not None and type(value) not in ATOMS and not isinstance(value, VariableTracker):
            noted.made[id(value)] = value
            native_calls.meets(value)
        return original(tx, value)

    return create


def _changed(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    def mutation(self: object, var: object) -> object:
        noted = now()
        if noted is not None and isinstance(var, ConstDictVariable) and var.source is not None:
            noted.wholes.append((var.source, "keys"))
        return original(self, var)

    return mutation


def _all_keys(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    def as_python_constant(self: Any, *args: object, **kwargs: object) -> Any:
        found = original(self, *args, **kwargs)  # raises unless it is a constant
        noted = now()
        if noted is not None and self.source is not None and not self.source.name.endswith(NO_KEYS):
            noted.wholes.append((self.source, "keys"))
        return found

    return as_python_constant


def _all_names(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    def call_dir(self: object, tx: object, arg: Any, *args: object, **kwargs: object) -> object:
        noted = now()
        if noted is not None and arg.source is not None:
            noted.wholes.append((arg.source, "dir"))
        return original(self, tx, arg, *args, **kwargs)

    return call_dir


def _as_text(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Record ``str(self.head)``: torch runs ``__repr__`` of all objects inside it."""

    def call_str(self: object, tx: object, arg: object, *args: object, **kwargs: object) -> object:
        noted = now()
        if noted is not None and isinstance(arg, UserDefinedObjectVariable):
            if arg.source is not None:
                if type(arg.value).__str__ is object.__str__:
                    noted.wholes.append((arg.source, "str"))
            elif type(arg.value).__repr__ is not object.__repr__:
                noted.problem = NotPortable(f"the text of a {type(arg.value).__qualname__} is part of the trace")
        return original(self, tx, arg, *args, **kwargs)

    return call_str


def _asked_for(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    def call_obj_hasattr(self: Any, tx: object, name: str, *args: object, **kwargs: object) -> object:
        noted = now()
        if noted is not None and self.source is not None:
            noted.attributes.append((self.source, name))
        return original(self, tx, name, *args, **kwargs)

    return call_obj_hasattr


def _read(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    def var_getattr(self: Any, tx: object, name: object, *args: object, **kwargs: object) -> object:
        try:
            return original(self, tx, name, *args, **kwargs)
        except ObservedAttributeError:
            noted = now()
            if noted is not None and self.source is not None and isinstance(name, str):
                noted.attributes.append((self.source, name))
            raise

    return var_getattr


def _subscripted(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    def getitem_const_raise_exception_if_absent(self: Any, tx: object, arg: Any) -> object:
        try:
            return original(self, tx, arg)
        except ObservedKeyError:
            noted = now()
            if noted is not None and self.source is not None:
                if arg.is_python_constant() and is_plain(arg.as_python_constant()):
                    noted.keys.append((self.source, arg.as_python_constant()))
                else:
                    noted.problem = NotPortable(f"{self.source.name} has no {arg}", code="package-not-portable")
            raise

    return getitem_const_raise_exception_if_absent


def _called(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Record results that may differ between processes.

    For example, ``is_xxx_available()`` changes when the user installs the package.
    """

    def call_function(self: Any, tx: object, args: Any, kwargs: object) -> object:
        noted = now()
        function: Any = self.fn if isinstance(self, dynamo_functions.PolyfilledFunctionVariable) else self.value
        if noted is not None and any(function is one for one in _OF_THE_PROCESS):
            values = tuple(arg.as_python_constant() for arg in args if arg.is_python_constant())
            try:
                if len(values) != len(args) or kwargs or not all(map(is_plain, values)):
                    raise NotPortable("its arguments are not constants")
                noted.asked[repr((function.__module__, function.__qualname__, values))] = (
                    function.__module__,
                    function.__qualname__,
                    values,
                    {},
                    Descriptions().value(function(*values)),
                )
            except Exception as reason:  # noqa: BLE001 - the trace gets the same error
                interruptions.pass_on(reason)
                noted.problem = NotPortable(f"{function.__qualname__}: {reason}")
        return original(self, tx, args, kwargs)

    return call_function


def _assumed(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Record a function under assume_constant_result. The function's result has no guard, so a later process calls the
    function.
    """

    def invoke_and_store_as_constant(tx: object, fn: Any, name: str, args: object, kwargs: object) -> object:
        noted = now()
        if noted is None:
            return original(tx, fn, name, args, kwargs)
        answered: list[Any] = []

        @functools.wraps(fn)
        def asked(*values: object, **named: object) -> object:
            answered[:] = [values, named, fn(*values, **named)]
            return answered[2]

        with native_calls.paused():  # a later process calls the function, and compares the results
            found = original(tx, asked, name, args, kwargs)
        try:
            here = object_at(fn.__module__, fn.__qualname__)
            if (
                not answered
                or not callable(here)
                or code_digest(fn.__code__) not in codes_at([fn.__module__, fn.__qualname__.split(".")])
            ):
                raise NotPortable("it cannot be found by name")
            values, named, result = answered
            shown = Descriptions().value([list(values), named, result])
            if not all(is_plain(item) for item in (*values, *named.values())):
                raise NotPortable("its arguments are objects")
            noted.asked[repr((fn.__module__, fn.__qualname__, shown))] = (
                fn.__module__,
                fn.__qualname__,
                values,
                named,
                shown[1][2],
            )
        except NotPortable as reason:
            noted.problem = NotPortable(
                f"{name} is assumed to return a constant: {reason}", code="package-assumed-constant"
            )
        return found

    return invoke_and_store_as_constant


def is_plain(value: object) -> bool:
    return type(value) in (bool, int, float, str, bytes, type(None))
