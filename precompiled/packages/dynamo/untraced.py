"""Refuses traces in which Dynamo runs the user's code without tracing it, or reuses a trace but makes no guards.

This project cannot note reads in such code. Examples:

- the key of a ``max()``,
- a function given to ``re.sub``,
- a protocol or hook that ``isinstance()`` calls,
- a region that Dynamo assumes to equal an earlier region (``nested_compile_region``),
- a function that Dynamo calls to get a number.

Private names: torch._dynamo.variables.lazy.LazyVariableTracker.{is_realized, realize, peek_value},
torch._dynamo.variables.base.VariableTracker.{is_python_constant, as_python_constant},
torch._dynamo.variables.builtin.BuiltinVariable.{call_isinstance, call_issubclass, call_function, fn,
_call_min_max_seq_with_key (2.15)}, torch._dynamo.variables.functions.{SkipFunctionVariable.call_function,
BaseUserFunctionVariable, FunctoolsPartialVariable}, torch._dynamo.variables.misc.ConstantLikeVariable.call_method,
torch._dynamo.variables.builder.handle_traced_output, torch._dynamo.variables.invoke_subgraph.{stamp_out_subgraph,
build_source_replacement} (2.13, 2.15). Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch._dynamo.variables.builder as dynamo_builder
import torch._dynamo.variables.functions as dynamo_functions
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.misc import ConstantLikeVariable

from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.describe.kinds import INSTALLATION, OF_C, global_unseen, is_installed
from precompiled.packages.dynamo.trace_log import TraceLog

# Functions without arguments that a trace may call, because other facts of an entry cover their results.
_SAME_IN_EACH_PROCESS = ("get_device_capability",)
_OF_NUMBERS = "sym_"  # prefix of functions that depend only on their arguments, such as torch.sym_int(2.67)


def replacements() -> Iterator[tuple[object, str, Callable[..., object]]]:
    """For each function of Dynamo that needs a wrapper (trace_patches), yield owner, name, and the wrapper's maker."""
    for name in ("call_isinstance", "call_issubclass"):
        yield BuiltinVariable, name, _is_of
    if not hasattr(BuiltinVariable, "_call_min_max_seq_with_key"):  # newer versions trace the key
        yield BuiltinVariable, "call_function", _folded_by_a_key
    yield ConstantLikeVariable, "call_method", _folded
    yield dynamo_builder, "handle_traced_output", _answered
    yield dynamo_functions.SkipFunctionVariable, "call_function", _folded
    if importlib.util.find_spec("torch._dynamo.variables.invoke_subgraph") is not None:
        yield importlib.import_module("torch._dynamo.variables.invoke_subgraph"), "stamp_out_subgraph", _stamped


def unlazy(variable: object) -> object:
    """Return the value of a lazy variable without realizing the variable. Return any other variable unchanged."""
    if isinstance(variable, LazyVariableTracker):
        return variable.realize() if variable.is_realized() else variable.peek_value()
    return variable


def constant(key: object) -> object:
    """Return the value of a constant. Return any other variable unchanged.

    Does not realize the arguments of a partial.
    """
    key = unlazy(key)
    if not isinstance(key, VariableTracker) or isinstance(key, dynamo_functions.FunctoolsPartialVariable):
        return key
    return key.as_python_constant() if key.is_python_constant() else key


def _is_of(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Refuse an isinstance() that depends on an object's attributes or on globals."""

    def call_isinstance(
        self: object, tx: object, arg: object, kinds: object, *args: object, **kwargs: object
    ) -> object:
        found = original(self, tx, arg, kinds, *args, **kwargs)
        noted = now()
        if noted is not None:
            for kind in _classes(constant(kinds)):
                if (said := _decides(kind)) is not None:
                    noted.problem = NotPortable(said)
        return found

    return call_isinstance


def _classes(asked: object) -> Iterator[object]:
    """Yield the classes in nested tuples and unions, and for an alias (typing.List) its class."""
    origin = typing.get_origin(asked)
    if isinstance(asked, tuple) or origin in (typing.Union, types.UnionType):
        for item in asked if isinstance(asked, tuple) else typing.get_args(asked):
            yield from _classes(item)
    elif isinstance(asked, VariableTracker) and isinstance(getattr(asked, "value", None), type):
        yield asked.value  # Dynamo does not treat an opaque class (a process group's) as a constant
    else:
        yield origin or asked


def _decides(kind: object) -> str | None:
    if not isinstance(kind, type):
        return f"the code calls isinstance() with {kind!r}"
    if is_installed(kind):
        return None
    for name in ("__instancecheck__", "__subclasscheck__"):
        check = inspect.getattr_static(type(kind), name)
        module = getattr(check, "__module__", None) or ""
        if not isinstance(check, OF_C) and module.split(".")[0] not in INSTALLATION:
            meta = type(kind)
            return f"the metaclass {meta.__module__}.{meta.__qualname__} decides the result of isinstance()"
    if getattr(kind, "_is_protocol", False):
        return f"what is of the protocol {kind.__qualname__} is not said by classes alone"
    for base in kind.__mro__:
        hook = vars(base).get("__subclasshook__")
        found = global_unseen(getattr(hook, "__func__", hook))
        if found is not None and not is_installed(base):
            return f"{base.__qualname__}.__subclasshook__ reads the global {found} without a trace"
    return None


def _is_function(variable: object) -> bool:
    """Whether a call of the variable's value runs code of the user's program."""
    variable = unlazy(variable)
    if not isinstance(variable, VariableTracker):
        return _runs_code(variable)
    if isinstance(variable, dynamo_functions.BaseUserFunctionVariable):
        return True
    return variable.is_python_constant() and _runs_code(variable.as_python_constant())


def _runs_code(value: object) -> bool:
    if isinstance(value, type):
        return not is_installed(value)
    return callable(value) and not isinstance(value, types.BuiltinFunctionType)


def _folded(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Refuse ``PATTERN.sub(function, text)``. Dynamo runs this call, and makes the result a constant of the trace."""

    def call(self: object, tx: object, *args: object, **kwargs: object) -> object:
        found = original(self, tx, *args, **kwargs)  # raises if the graph breaks or the frame is skipped
        noted = now()
        if noted is not None:
            given = [*args, *kwargs.values()]
            ours = any(_is_function(item) for part in given for item in _items(part))
            if ours:
                noted.problem = NotPortable(
                    f"a function is passed to {getattr(self, 'value', self)}, and runs untraced"
                )
        return found

    return call


def _items(part: object) -> list[object]:
    if isinstance(part, (list, tuple)):
        return list(part)
    return list(part.values()) if isinstance(part, dict) else [part]


def _folded_by_a_key(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    def call_function(self: Any, tx: object, args: object, kwargs: Any) -> object:
        found = original(self, tx, args, kwargs)
        noted = now()
        if noted is not None and self.fn in (max, min) and _is_function(kwargs.get("key")):
            noted.problem = NotPortable(f"the key of a {self.fn.__name__}() is run untraced")
        return found

    return call_function


def _answered(original: Callable[..., Any], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Refuse a number from a function without arguments, such as ``torch.seed()`` or ``torch.cuda.mem_get_info()``.

    The number is a constant of the trace, and differs between processes.
    """

    def handle_traced_output(example_value: object, tx: object, proxy: Any, *args: object, **kwargs: object) -> object:
        found = original(example_value, tx, proxy, *args, **kwargs)
        noted = now()
        if noted is not None and type(example_value) in (int, float) and found.is_python_constant():
            node = proxy.node
            while node.target is operator.getitem:
                node = node.args[0]
            name = getattr(node.target, "__name__", "")
            computed = node.args and name.startswith(_OF_NUMBERS)
            alone = node.op == "call_function" and not node.all_input_nodes and not computed
            if alone and name not in _SAME_IN_EACH_PROCESS:
                said = f"{name}() returned a number in the trace, and returns a different number in each process"
                noted.problem = NotPortable(said, code="package-id")
        return found

    return handle_traced_output


def _stamped(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Refuse a reused region of ``nested_compile_region``.

    Dynamo does not trace a region that resembles an earlier region. The region may use other objects (the next layer),
    and no guard compares these with the earlier objects.
    """
    regions = sys.modules[original.__module__]

    def stamp_out_subgraph(tx: object, fingerprint: Any, cached: Any) -> object:
        noted = now()
        if noted is not None and regions.build_source_replacement(cached.arg_sources, fingerprint.arg_sources):
            noted.problem = NotPortable("Dynamo reused the trace of an earlier region")
        return original(tx, fingerprint, cached)

    return stamp_out_subgraph
