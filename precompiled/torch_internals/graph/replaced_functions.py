"""Refuses graphs that use a function of torch that the program has replaced: ``torch.relu = mine``, for example.

Dynamo inlines a replacement that the user's code calls directly. But a graph also calls torch's Python functions
(``F.layer_norm``) and tensor methods (``x.relu()``, ``operator.matmul``). These call further functions of torch, which
AOTAutograd runs. A worker has torch's own functions, so a graph that reaches a replacement is compiled in process. A
package's entry is valid only with the replacements that were in place at its trace.

The ``__name__`` of a public function of torch equals its name in the namespace, apart from underscores and a prefix
(``torch.special.psi`` has the ``__name__`` ``special_psi``). _ALIASES lists the exceptions.

Private names: torch._C.{_nn, _special, _linalg, _fft, TensorBase}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import importlib
import operator
import sys
import types
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from precompiled.core.definitions import codes_within
from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import call_targets

_MODULES = ("torch", "torch.nn.functional", "torch.functional", "torch.special", "torch.linalg", "torch.fft")
_OF_C = ("_nn", "_special", "_linalg", "_fft")
_TENSOR = "torch.Tensor"
_C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
)
_ALIASES = {
    "__rtruediv__": "__rdiv__",
    "__itruediv__": "__idiv__",
    "__ipow__": "pow_",
    "__pos__": "positive",
    "__torch_dispatch__": "_disabled_torch_dispatch_impl",
}
# Functions of these packages do not count as replacements by the program. unittest is not in the list, because its
# mocks count.
_INSTALLED = frozenset({"torch", "typing_extensions", *sys.stdlib_module_names}) - {"unittest"}
_OPERATORS = ("_operator", "operator", "builtins")
# Maps the NAME of a function in the operator module to the special methods that Python may call for the function,
# besides NAME, rNAME and iNAME. The reflected form of < is >, for example.
_OTHERS = {
    "lt": ("gt",),
    "gt": ("lt",),
    "le": ("ge",),
    "ge": ("le",),
    "not": ("bool",),
    "truth": ("bool",),
    "inv": ("invert",),
    "concat": ("add", "radd"),
    "iconcat": ("iadd", "add", "radd"),
}


def replaced_functions() -> dict[str, object]:
    """Map the dotted names of torch's functions to the program's functions that replace them.

    Compares about 2,500 names in a fraction of a millisecond.
    """
    return {
        f"{space.place}.{name}": value
        for space in _spaces()
        for name, value in list(space.names.items())
        if name not in space.others and value is not space.own.get(name) and space.is_replaced(name, value)
    }


def refuse_target(target: Any, replaced: Mapping[str, object]) -> None:
    """Raise Bypass if a ``call_function`` target leads to one of the ``replaced`` functions."""
    if not replaced:
        return
    if getattr(target, "__module__", None) in _OPERATORS:
        for method in _methods(target.__name__):
            refuse_method(method, replaced)
    elif isinstance(target, types.FunctionType):
        _refuse_reached(target, replaced, target.__qualname__)


def refuse_method(name: str, replaced: Mapping[str, object]) -> None:
    """Raise Bypass if a ``call_method`` target leads to one of the ``replaced`` functions."""
    if f"{_TENSOR}.{name}" in replaced:
        raise Bypass(f"the program has replaced {_TENSOR}.{name}, and the graph uses it", code="user-function")
    found = vars(torch.Tensor).get(name)
    if replaced and isinstance(found, types.FunctionType):
        _refuse_reached(found, replaced, f"Tensor.{name}")


# ---------------------------------------------------------------------- torch's own functions


@dataclass(frozen=True)
class _Space:
    """A namespace of torch, with the results of earlier checks."""

    place: str
    names: Mapping[str, object]
    own: dict[str, object] = field(default_factory=dict)  # torch's functions
    others: set[str] = field(default_factory=set)  # names in the namespace that are not public functions of torch

    def is_replaced(self, name: str, value: object) -> bool:
        if not _is_public_function(self.place, name):
            self.others.add(name)
            return False
        if not _is_own(name, value):
            return True
        self.own[name] = value
        return False


@cache
def _spaces() -> tuple[_Space, ...]:
    modules = [(name, importlib.import_module(name)) for name in _MODULES]
    modules += [(f"torch._C.{name}", getattr(torch._C, name)) for name in _OF_C]
    return (*(_Space(name, vars(module)) for name, module in modules), _Space(_TENSOR, vars(torch.Tensor)))


def _is_own(name: str, value: Any) -> bool:
    """Whether a value is torch's own function, or a class or object that torch or the standard library defines."""
    kind = type(value)
    if isinstance(value, type):
        return value.__module__.partition(".")[0] in _INSTALLED
    if kind is staticmethod or kind is classmethod:
        return _is_own(name, value.__func__)
    if kind is property:
        return _is_own(name, value.fget)
    if kind is types.FunctionType:
        return call_targets.is_torchs_code(value) and _is_called(name, value.__name__)
    if kind in _C_FUNCTIONS:
        return _is_called(name, value.__name__)
    return kind.__module__.partition(".")[0] in _INSTALLED


def _is_public_function(place: str, name: str) -> bool:
    if place == _TENSOR:  # excludes methods that the program has added to tensors
        return hasattr(torch._C.TensorBase, name) or name.startswith("__")
    if name.startswith("_"):
        return False
    return place != "torch" or name in _exported()


@cache
def _exported() -> frozenset[str]:
    return frozenset(torch.__all__) | frozenset(vars(torch.functional))


def _is_called(name: str, itself: str) -> bool:
    return itself.replace("_", "").endswith(name.replace("_", "")) or _ALIASES.get(name) == itself


# ---------------------------------------------------------------------- functions that a graph reaches


def _refuse_reached(function: types.FunctionType, replaced: Mapping[str, object], shown: str) -> None:
    names = _names_within(function)
    for place in sorted(replaced):
        if place.rpartition(".")[2] in names:
            raise Bypass(
                f"the program has replaced {place}, and the graph calls {shown}, which uses it", code="user-function"
            )


def _names_within(function: types.FunctionType) -> Set[str]:
    """All names, attributes included, in a function of torch and in the functions of torch that it calls.

    The result is not cached, because it depends on the functions that are replaced now.
    """
    names: set[str] = set()
    seen = {function}
    waiting = [function]
    while waiting:
        current = waiting.pop()
        found = {name for code in codes_within(current.__code__) for name in code.co_names}
        names |= found
        for called in _called(current, found):
            if called not in seen:
                seen.add(called)
                waiting.append(called)
    return names


def _called(function: types.FunctionType, names: Set[str]) -> Iterator[types.FunctionType]:
    held = [cell.cell_contents for cell in function.__closure__ or () if not _is_empty(cell)]
    places = [function.__globals__, *(space.names for space in _spaces())]
    found = [*held, *(place[name] for place in places for name in names if name in place)]
    for value in found:
        called = value.__func__ if type(value) is staticmethod else value
        if type(called) is types.FunctionType and call_targets.is_torchs_code(called):
            yield called


def _is_empty(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


# ---------------------------------------------------------------------- operators


@cache
def _methods(function: str) -> tuple[str, ...]:
    """The tensor methods that Python may call for a function of the operator module (``and_``, ``iadd``)."""
    return tuple(f"__{name}__" for name in dict.fromkeys(_stems(function.strip("_"))))


def _stems(name: str) -> Iterator[str]:
    yield from (name, f"r{name}", f"i{name}", *_OTHERS.get(name, ()))
    if name.startswith("i") and hasattr(operator, f"__{name[1:]}__"):  # an in-place form, if its plain method exists
        yield from (name[1:], f"r{name[1:]}")
