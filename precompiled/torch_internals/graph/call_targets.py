"""Encodes the call targets of a Dynamo graph as names, and resolves the names in the worker.

A target gets a name only if resolving the name returns the same object. For NumPy's wrappers, and for functions that
are defined inside a function of torch, an equal object suffices. So a name cannot stand for another function. A user's
function gets no name, since its code could change under an unchanged name. The name of a custom operator includes
digests::

    ["cop", namespace, name, overload, modules, digest, kernels, *units]

- ``modules``: the modules that a worker imports, joined by commas; ``digest``: the digest of the modules' sources
- ``kernels``: the operator's dispatch keys
- ``units``: the sources of an operator that the program itself defines (program_ops.py), or an operator's schema
  (schema_ops.py)

Private names: torch._C.{_nn, _special, _linalg, _fft, _VariableFunctions, _autograd, _functorch,
_log_api_usage_once}, torch._VF,
torch._ops.{OpOverload._schema, OpOverload._overloadname, OpOverloadPacket._qualified_op_name,
HigherOrderOperator._name}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import importlib
import math
import operator
import warnings
from functools import cache
from types import BuiltinFunctionType, CodeType, FunctionType, MethodDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any

import torch
import typing_extensions

from precompiled.core import interruptions
from precompiled.core.errors import Bypass
from precompiled.core.files import is_really_torchs
from precompiled.torch_internals.graph import numpy_calls
from precompiled.torch_internals.user_code import custom_ops, user_modules

# Namespaces of operators that come with torch. A user's module would have to patch torch to redefine these operators.
BUILTIN_OP_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "quantized", "quantized_decomposed", "inductor", "_quantized"}
)
# A functional collective contains all that a compile needs: the group's name, and the group's size if a shape depends
# on the size.
COLLECTIVE_OP_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd"})
GROUP_ARGUMENT = "group_name"
_OTHER_COLLECTIVE_OP_NAMESPACES = frozenset({"c10d", "c10d_functional", "_dtensor"})
_STANDARD_MODULES = frozenset({"_operator", "operator", "math", "builtins"})

# The files that define the wrapper with which torch marks deprecated functions (torch._check_is_size, for example).
_DEPRECATING = frozenset({typing_extensions.__file__, warnings.__file__})

# Higher-order operators whose arguments are graphs and data only, so the encoded graphs describe them completely.
# Operators that take code by reference (user Triton kernels: user_kernels.py) or have effects are excluded.
_HIGHER_ORDER = frozenset(
    """
    associative_scan autograd_function_apply checkpoint cond custom_function_call flex_attention flex_attention_backward
    hints_wrapper map_impl out_dtype scan tag_activation_checkpoint while_loop wrap
    wrap_activation_checkpoint
    """.split()
)

# Some functions cannot be found by their own __module__ and __qualname__: builtins such as torch.add, and wrappers such
# as max_pool2d, whose __qualname__ is "boolean_dispatch.<locals>.fn". These namespaces of torch are searched for such
# functions, in this order.
_NAMESPACES = tuple(
    """
    torch torch.nn.functional torch._C._nn torch.special torch.linalg torch.fft torch.Tensor torch._C._special
    torch._C._linalg torch._C._fft torch._C._VariableFunctions torch._VF torch._C._autograd torch._C._functorch operator
    math
    """.split()
)

# The usage counter that torch calls when a module is constructed. pybind11 gives the function the qualified name of an
# internal type, so this file refers to the function by its name in torch._C.
_LOGGED = ("torch._C", "_log_api_usage_once")


@cache
def _resolve(module: str, qualname: str) -> Any:
    return operator.attrgetter(qualname)(importlib.import_module(module) if module else None)


@cache
def _namespace(name: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        return getattr(_namespace(parent), last)


@cache
def _searched() -> dict[int, tuple[str, str]]:
    """Map the id of each callable in _NAMESPACES to (namespace, attribute)."""
    table: dict[int, tuple[str, str]] = {}
    for name in _NAMESPACES:
        space = _namespace(name)
        for attribute in dir(space):
            try:
                value = getattr(space, attribute)
            except Exception as error:  # noqa: BLE001 - some attributes of torch raise when they are read (deprecated storages)
                interruptions.pass_on(error)
                continue
            if callable(value) and not isinstance(value, ModuleType):
                table.setdefault(id(value), (name, attribute))
    return table


_NAMES: dict[int, tuple[object, list[str]]] = {}


def encode(target: object) -> list[str]:
    """The name of a ``call_function`` target: ``[kind, ...]``. Raises Bypass for code that is not torch's own."""
    known = _NAMES.get(id(target))
    if known is not None and known[0] is target:
        return known[1]
    name = _encode(target)
    # These names are not cached: the digest of a user's operator covers current values, and some functions are new in
    # each trace.
    if name[0] not in ("cop", "local", numpy_calls.KIND):
        _NAMES[id(target)] = (target, name)  # the reference keeps the object alive, so its id is not reused
    return name


def _encode(target: object) -> list[str]:
    if isinstance(target, torch._ops.OpOverload):
        namespace, name = _op_name(target._schema.name)
        if namespace not in BUILTIN_OP_NAMESPACES | COLLECTIVE_OP_NAMESPACES:
            modules, digest, *source = custom_ops.defining_modules(target)
            return ["cop", namespace, name, target._overloadname, modules, digest, custom_ops.kernels(target), *source]
        return ["op", namespace, name, target._overloadname]
    if isinstance(target, torch._ops.OpOverloadPacket):
        namespace, name = _op_name(target._qualified_op_name)
        if namespace not in BUILTIN_OP_NAMESPACES | COLLECTIVE_OP_NAMESPACES:
            overloads = target.overloads()
            if len(overloads) != 1:
                raise Bypass(f"the graph calls {namespace}::{name}, which has several overloads", code="custom-op")
            return _encode(getattr(target, overloads[0]))
        return ["op", namespace, name]
    if isinstance(target, torch._ops.HigherOrderOperator):
        name = target._name
        if name not in _HIGHER_ORDER or getattr(torch.ops.higher_order, name, None) is not target:
            raise Bypass(f"the graph uses the higher-order operator {target}", code="higher-order-operator")
        return ["hop", name]
    if (of_numpy := numpy_calls.encode(target)) is not None:
        return of_numpy
    # A method of a C type (torch.Tensor.set_, for example) has no __module__, but its type has one.
    kind = getattr(target, "__objclass__", None)
    module = getattr(target, "__module__", None) or getattr(kind, "__module__", None) or ""
    qualname = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or ""
    if not _is_torchs_own(module) or not is_torchs_code(target):
        shown = f"{module}.{qualname}" if module else repr(target)
        raise Bypass(f"the graph calls {shown}, whose code is not torch's own", code="user-function")
    if qualname and "<" not in qualname and _leads_to(module, qualname, target):
        return ["fn", module, qualname]
    if _leads_to(*_LOGGED, target):
        return ["fn", *_LOGGED]
    if _is_local(module, qualname, target):
        return ["local", module, qualname]
    # A user's function that was patched into a torch namespace was refused above (is_torchs_code), because in a worker
    # its name means torch's function.
    found = _searched().get(id(target))
    if found is not None and getattr(_namespace(found[0]), found[1], None) is target:
        return ["fn", *found]
    shown = f"{module}.{qualname}" if module else repr(target)
    raise Bypass(f"the graph calls {shown}, whose code is not torch's own", code="user-function")


def _op_name(qualified: str) -> tuple[str, str]:
    namespace, _, name = qualified.partition("::")
    if namespace in _OTHER_COLLECTIVE_OP_NAMESPACES:
        raise Bypass(f"the graph has the collective {qualified}", code="collective")
    # Operators of ``streams`` refer to a stream or event by a number that is valid in this process only.
    if namespace == "streams":
        raise Bypass(f"the graph has {qualified}", code="marked-node")
    return namespace, name


def _is_torchs_own(module: str) -> bool:
    return module in _STANDARD_MODULES or module == "torch" or module.startswith("torch.")


def is_torchs_code(target: Any) -> bool:
    """Whether a target is a class, C code, or torch's own Python function, regardless of its name.

    The name does not show whether a function is a patch: functools.wraps gives a patch the name of the function that
    the patch replaces, and Dynamo puts a patched torch.nn.functional.x into the graph as if it were torch's own.
    """
    if isinstance(target, FunctionType):
        if target.__code__.co_filename in _DEPRECATING:
            target = getattr(target, "__wrapped__", target)
        return is_really_torchs(target.__code__.co_filename)
    return isinstance(target, (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, type))


def _leads_to(module: str, qualname: str, target: object) -> bool:
    try:
        return _resolve(module, qualname) is target
    except (ImportError, AttributeError):
        return False


def _is_local(module: str, qualname: str, target: object) -> bool:
    """Whether the target is a function without closure or defaults that is defined inside a function of torch.

    Dynamo puts such a local function into a graph for ``parameter.data = value``.
    """
    if not isinstance(target, FunctionType) or target.__closure__ or target.__defaults__ or target.__kwdefaults__:
        return False
    try:
        return _local(module, qualname).__code__ == target.__code__
    except (ImportError, AttributeError, ValueError):
        return False


def _local(module: str, qualname: str) -> FunctionType:
    """Rebuild a function that is defined inside a function of torch.

    Raises ImportError, AttributeError or ValueError if the function does not exist or has a closure.
    """
    outer, _, inner = qualname.rpartition(".<locals>.")
    constants = _resolve(module, outer).__code__.co_consts
    found = [code for code in constants if isinstance(code, CodeType) and code.co_name == inner]
    if len(found) != 1 or found[0].co_freevars:
        raise ValueError(f"{module}.{outer} defines no function {inner} that can be made without its call")
    return FunctionType(found[0], vars(importlib.import_module(module)), inner)


@cache
def _decode(name: tuple[str, ...]) -> object:
    kind, *rest = name
    if kind == "op":
        found = getattr(getattr(torch.ops, rest[0]), rest[1])
        return getattr(found, rest[2] or "default") if len(rest) > 2 else found
    if kind == "cop":
        namespace, op, overload, modules, digest, kernels, *source = rest
        if modules:
            user_modules.import_modules(modules, digest)
        for units in source:
            custom_ops.define(units)
        found = getattr(getattr(getattr(torch.ops, namespace), op), overload)
        if (here := custom_ops.kernels(found)) != kernels:
            raise ValueError(
                f"{modules} registers {namespace}::{op} for {here}, but the program registers it for {kernels}"
            )
        return found
    if kind == "hop":
        if rest[0] not in _HIGHER_ORDER:
            raise ValueError(f"{rest[0]} is not a higher-order operator that can be sent")
        return getattr(torch.ops.higher_order, rest[0])
    if kind == numpy_calls.KIND:
        return numpy_calls.decode(list(name))
    if kind == "local":
        return _local(*rest)
    if kind == "fn":
        module, qualname = rest
        space = _namespace(module) if module in _NAMESPACES else importlib.import_module(module)
        return operator.attrgetter(qualname)(space)
    raise ValueError(f"unknown kind of target {kind!r}")


def is_collective(name: list[str]) -> bool:
    """Whether the target ``name`` communicates with other ranks.

    Targets that communicate are torch's functional collectives, and operators of other libraries that take a group's
    name (``vllm::all_reduce``).
    """
    if name[0] == "cop":
        try:
            return names_group(getattr(getattr(getattr(torch.ops, name[1]), name[2]), name[3]))
        except AttributeError:
            return True  # the operator is not loaded in this process: assume that it communicates
    return name[0] == "op" and name[1] in COLLECTIVE_OP_NAMESPACES


def names_group(target: object) -> bool:
    """Whether the operator takes the name of a process group, of torch or of another library, as an argument."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        return any(names_group(getattr(target, overload)) for overload in target.overloads())
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return any(argument.name == GROUP_ARGUMENT for argument in target._schema.arguments)


def modules_of(name: list[str]) -> dict[str, str]:
    """Return the modules and operators that a worker must load for this target, as a map from name to digest."""
    if name[0] != "cop":
        return {}
    _, _, _, _, modules, digest, _, *source = name
    found = {modules: digest} if modules else {}
    for units in source:
        found.update(custom_ops.digests(units))
    return found


def missing_operator(name: list[str]) -> str:
    """Why this process lacks a custom operator whose modules it has imported; "" if it has the operator."""
    if name[0] != "cop" or not name[4] or hasattr(getattr(torch.ops, name[1]), name[2]):
        return ""
    operator = f"{name[1]}::{name[2]}"
    return (
        f"the import of {name[4]} does not define the operator {operator}. "
        "If a function defines it, move the definition to the top level of the module"
    )


def decode(name: list[str]) -> Any:
    """The object that ``encode`` named. Raises ValueError, ImportError or AttributeError if there is no such object."""
    if name[0] in ("fn", "local") and not (_is_torchs_own(name[1]) or name[1] in _NAMESPACES):
        raise ValueError(f"{name[1]} is not a module of torch")
    # An operator that the program defines is not cached, because the program may redefine it (by running a notebook
    # cell again).
    return _decode.__wrapped__(tuple(name)) if name[0] == "cop" and name[7:] else _decode(tuple(name))


# Frequent targets are named in advance, so that looking up a graph needs no search of torch's namespaces for them.
for _function in (operator.getitem, operator.add, operator.mul, operator.sub, operator.truediv, math.sqrt):
    _NAMES[id(_function)] = (_function, ["fn", _function.__module__, _function.__name__])
