"""What Dynamo decides or computes while it traces by running the user's own code, or without a look: not kept.

Nothing of what such code reads is seen: the key of a ``max()``, the function that ``re.sub`` is given, a protocol's or
a hook's part in ``isinstance()``, and a region that is taken for another (``nested_compile_region``).

Private names: torch._dynamo.variables.lazy.LazyVariableTracker.{is_realized, realize, peek_value},
torch._dynamo.variables.base.VariableTracker.{is_python_constant, as_python_constant},
torch._dynamo.variables.builtin.BuiltinVariable.{call_isinstance, call_issubclass, call_function, fn,
_call_min_max_seq_with_key (2.15)}, torch._dynamo.variables.functions.{SkipFunctionVariable.call_function,
BaseUserFunctionVariable, FunctoolsPartialVariable}, torch._dynamo.variables.misc.ConstantLikeVariable.call_method,
torch._dynamo.variables.invoke_subgraph.{stamp_out_subgraph, build_source_replacement} (2.13, 2.15).
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch._dynamo.variables.functions as dynamo_functions
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.misc import ConstantLikeVariable

from precompiled.packages.describe.descriptions import INSTALLATION, global_unseen
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo.trace_log import TraceLog


def replacements() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Owner, name, and what makes the wrapper of what stands there (trace_patches.wrap)."""
    for name in ("call_isinstance", "call_issubclass"):
        yield BuiltinVariable, name, _is_of
    if not hasattr(BuiltinVariable, "_call_min_max_seq_with_key"):  # which is a trace of the key
        yield BuiltinVariable, "call_function", _folded_by_a_key
    yield ConstantLikeVariable, "call_method", _folded
    yield dynamo_functions.SkipFunctionVariable, "call_function", _folded
    if importlib.util.find_spec("torch._dynamo.variables.invoke_subgraph") is not None:
        yield importlib.import_module("torch._dynamo.variables.invoke_subgraph"), "stamp_out_subgraph", _stamped


def _unlazy(variable: Any) -> Any:
    """The value of a lazy variable, which is not made one by a look at it; of all others the variable."""
    if isinstance(variable, LazyVariableTracker):
        return variable.realize() if variable.is_realized() else variable.peek_value()
    return variable


def constant(key: Any) -> Any:
    """Its value, where it is one; those within a partial are not made variables by a look at it."""
    key = _unlazy(key)
    if not isinstance(key, VariableTracker) or isinstance(key, dynamo_functions.FunctoolsPartialVariable):
        return key
    return key.as_python_constant() if key.is_python_constant() else key


def _is_of(original: Callable[..., Any], now: Callable[[], TraceLog | None]) -> Callable[..., Any]:
    """Refuse what decides isinstance() by more than classes: a protocol's look at an object, a hook that reads."""

    def call_isinstance(self: Any, tx: Any, arg: Any, kinds: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, tx, arg, kinds, *args, **kwargs)
        noted = now()
        if noted is not None:
            with noted.looking():
                for kind in _classes(constant(kinds)):
                    if (said := _decides(kind)) is not None:
                        noted.problem = NotPortable(said)
        return found

    return call_isinstance


def _classes(asked: Any) -> Iterator[Any]:
    """Of tuples within tuples, and unions; what names such a class otherwise (typing.List) as that."""
    origin = typing.get_origin(asked)
    if isinstance(asked, tuple) or origin in (typing.Union, types.UnionType):
        for item in asked if isinstance(asked, tuple) else typing.get_args(asked):
            yield from _classes(item)
    else:
        yield origin or asked


def _decides(kind: Any) -> str | None:
    if not isinstance(kind, type):
        return f"isinstance() is asked of {kind!r}"
    if kind.__module__.split(".")[0] in INSTALLATION:
        return None
    if getattr(kind, "_is_protocol", False):
        return f"what is of the protocol {kind.__qualname__} is not said by classes alone"
    for base in kind.__mro__:
        hook = vars(base).get("__subclasshook__")
        found = global_unseen(getattr(hook, "__func__", hook))
        if found is not None and base.__module__.split(".")[0] not in INSTALLATION:
            return f"{base.__qualname__}.__subclasshook__ reads the global {found}, and no trace sees it"
    return None


def _is_function(variable: Any) -> bool:
    """Whether it runs code of the user's when it is called."""
    variable = _unlazy(variable)
    if not isinstance(variable, VariableTracker):
        return _runs_code(variable)
    if isinstance(variable, dynamo_functions.BaseUserFunctionVariable):
        return True
    return variable.is_python_constant() and _runs_code(variable.as_python_constant())


def _runs_code(value: Any) -> bool:
    if isinstance(value, type):
        return value.__module__.split(".")[0] not in INSTALLATION
    return callable(value) and not isinstance(value, types.BuiltinFunctionType)


def _folded(original: Callable[..., Any], now: Callable[[], TraceLog | None]) -> Callable[..., Any]:
    """``PATTERN.sub(function, text)``: Dynamo runs it all, the user's function too, and keeps the result."""

    def call(self: Any, tx: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(self, tx, *args, **kwargs)  # raises where the frame breaks, or is left alone
        noted = now()
        if noted is not None:
            given = [*args, *kwargs.values()]
            with noted.looking():
                ours = any(_is_function(item) for part in given for item in _items(part))
            if ours:
                noted.problem = NotPortable(f"a function is given to {getattr(self, 'value', self)}, and run untraced")
        return found

    return call


def _items(part: Any) -> list[Any]:
    if isinstance(part, (list, tuple)):
        return list(part)
    return list(part.values()) if isinstance(part, dict) else [part]


def _folded_by_a_key(original: Callable[..., Any], now: Callable[[], TraceLog | None]) -> Callable[..., Any]:
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        found = original(self, tx, args, kwargs)
        noted = now()
        if noted is not None and self.fn in (max, min):
            with noted.looking():
                if _is_function(kwargs.get("key")):
                    noted.problem = NotPortable(f"the key of a {self.fn.__name__}() is run untraced")
        return found

    return call_function


def _stamped(original: Callable[..., Any], now: Callable[[], TraceLog | None]) -> Callable[..., Any]:
    """``nested_compile_region``: a region that is like one before is not traced, and where it is of other objects (the
    next layer), what says that they are alike has no guard.
    """
    regions = sys.modules[original.__module__]

    def stamp_out_subgraph(tx: Any, fingerprint: Any, cached: Any) -> Any:
        noted = now()
        if noted is not None:
            with noted.looking():
                if regions.build_source_replacement(cached.arg_sources, fingerprint.arg_sources):
                    noted.problem = NotPortable("a region was taken for one that had been traced before")
        return original(tx, fingerprint, cached)

    return stamp_out_subgraph
