"""Call targets of Dynamo graphs, to names and back.

A name is used only when looking it up gives the very same object, so a name can never stand for something else. A
user's function has none: its code could change under an unchanged name. A custom op has one with a digest::

    ["cop", namespace, name, overload, modules that a worker imports (a,b), their digest, its dispatch keys,
     and its units of an operator that the program itself defines (program_ops.py) or the schema says (schema_ops.py)]

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

from precompiled.core.errors import Bypass
from precompiled.core.files import is_really_torchs
from precompiled.torch_internals.graph import numpy_calls
from precompiled.torch_internals.user_code import custom_ops, user_modules

# Operators that come with torch and cannot be redefined by a user's module without patching torch itself.
BUILTIN_OP_NAMESPACES = frozenset(
    {"aten", "prims", "prim", "quantized", "quantized_decomposed", "inductor", "_quantized"}
)
# Functional collectives say all that a compile needs: the group's name, and its size where a shape depends on it.
COLLECTIVE_OP_NAMESPACES = frozenset({"_c10d_functional", "_c10d_functional_autograd"})
GROUP_ARGUMENT = "group_name"
_OTHER_COLLECTIVE_OP_NAMESPACES = frozenset({"c10d", "c10d_functional", "_dtensor"})
_STANDARD_MODULES = frozenset({"_operator", "operator", "math", "builtins"})

# Files of the wrapper that warns, around what torch has deprecated (torch._check_is_size).
_DEPRECATING = frozenset({typing_extensions.__file__, warnings.__file__})

# Operators that take graphs, and whose other arguments are data: what they do is all in the encoded graphs. Not those
# that take code by reference (user Triton kernels: user_kernels.py) or have effects.
_HIGHER_ORDER = frozenset(
    {
        "tag_activation_checkpoint",
        "wrap_activation_checkpoint",
        "wrap",
        "autograd_function_apply",
        "custom_function_call",
        "cond",
        "while_loop",
        "scan",
        "associative_scan",
        "map_impl",
        "invoke_subgraph",
        "flex_attention",
        "flex_attention_backward",
        "hints_wrapper",
        "out_dtype",
        "checkpoint",
    }
)

# Searched in this order for functions whose own __module__ and __qualname__ do not lead back to them
# (builtins such as torch.add, and wrappers such as max_pool2d, which is a "boolean_dispatch.<locals>.fn").
_NAMESPACES = (
    "torch",
    "torch.nn.functional",
    "torch._C._nn",
    "torch.special",
    "torch.linalg",
    "torch.fft",
    "torch.Tensor",
    "torch._C._special",
    "torch._C._linalg",
    "torch._C._fft",
    "torch._C._VariableFunctions",
    "torch._VF",
    "torch._C._autograd",
    "torch._C._functorch",
    "operator",
    "math",
)

# Of torch._C itself, by the name that it has there: pybind11 gives a function the qualified name of a type of its own.
# It notes for torch's makers that something is used, in each graph in which a module is constructed.
_LOGGED = ("torch._C", "_log_api_usage_once")


@cache
def _resolve(module: str, qualname: str) -> Any:
    return operator.attrgetter(qualname)(importlib.import_module(module) if module else None)


@cache
def _namespace(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        return getattr(_namespace(parent), last)


@cache
def _searched() -> dict[int, tuple[str, str]]:
    """id of each callable of the namespaces above -> (namespace, attribute). Built once, on the first odd target."""
    table: dict[int, tuple[str, str]] = {}
    for name in _NAMESPACES:
        space = _namespace(name)
        for attribute in dir(space):
            try:
                value = getattr(space, attribute)
            except Exception:  # noqa: BLE001 - lazily failing attributes of torch (deprecated storages and the like)
                continue
            if callable(value) and not isinstance(value, ModuleType):
                table.setdefault(id(value), (name, attribute))
    return table


_NAMES: dict[int, tuple[Any, list[str]]] = {}


def encode(target: Any) -> list[str]:
    """The name of a ``call_function`` target: ``[kind, ...]``. Raises Bypass for what is not torch's own."""
    known = _NAMES.get(id(target))
    if known is not None and known[0] is target:
        return known[1]
    name = _encode(target)
    # Not an operator of the user's, whose digest is of the module's values as they are now, nor what Dynamo makes anew.
    if name[0] not in ("cop", "local", numpy_calls.KIND):
        _NAMES[id(target)] = (target, name)  # keeps the object alive, so that its id stays its own
    return name


def _encode(target: Any) -> list[str]:
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
    # A method of a type of C's says of its module only what its type says (torch.Tensor.set_).
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
    # A user's function that was patched into a torch namespace has a name there too; in a worker it means another one.
    found = _searched().get(id(target))
    if found is not None and getattr(_namespace(found[0]), found[1], None) is target:
        return ["fn", *found]
    shown = f"{module}.{qualname}" if module else repr(target)
    raise Bypass(f"the graph calls {shown}, whose code is not torch's own", code="user-function")


def _op_name(qualified: str) -> tuple[str, str]:
    namespace, _, name = qualified.partition("::")
    if namespace in _OTHER_COLLECTIVE_OP_NAMESPACES:
        raise Bypass(f"the graph has the collective {qualified}", code="collective")
    if namespace == "streams":  # names its stream or event by a number that this process alone knows
        raise Bypass(f"the graph has {qualified}", code="marked-node")
    return namespace, name


def _is_torchs_own(module: str) -> bool:
    return module in _STANDARD_MODULES or module == "torch" or module.startswith("torch.")


def is_torchs_code(target: Any) -> bool:
    """Whether its code is torch's (or of C), whatever it calls itself: functools.wraps gives a patch the names of what
    it replaces, and Dynamo puts a patched torch.nn.functional.x into the graph as if it were torch's.
    """
    if isinstance(target, FunctionType):
        if target.__code__.co_filename in _DEPRECATING:
            target = getattr(target, "__wrapped__", target)
        return is_really_torchs(target.__code__.co_filename)
    return isinstance(target, (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType, type))


def _leads_to(module: str, qualname: str, target: Any) -> bool:
    try:
        return _resolve(module, qualname) is target
    except (ImportError, AttributeError):
        return False


def _is_local(module: str, qualname: str, target: Any) -> bool:
    """Whether it is what a function of torch's defines, and needs nothing of that function's call: what Dynamo puts
    into a graph for ``parameter.data = value``.
    """
    if not isinstance(target, FunctionType) or target.__closure__ or target.__defaults__ or target.__kwdefaults__:
        return False
    try:
        return _local(module, qualname).__code__ == target.__code__
    except (ImportError, AttributeError, ValueError):
        return False


def _local(module: str, qualname: str) -> FunctionType:
    """Raises ImportError, AttributeError or ValueError where there is no such function."""
    outer, _, inner = qualname.rpartition(".<locals>.")
    constants = _resolve(module, outer).__code__.co_consts
    found = [code for code in constants if isinstance(code, CodeType) and code.co_name == inner]
    if len(found) != 1 or found[0].co_freevars:
        raise ValueError(f"{module}.{outer} defines no function {inner} that can be made without its call")
    return FunctionType(found[0], vars(importlib.import_module(module)), inner)


@cache
def _decode(name: tuple[str, ...]) -> Any:
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
            raise ValueError(f"{modules} registers {namespace}::{op} for {here}, and the program has it for {kernels}")
        return found
    if kind == "hop":
        if rest[0] not in _HIGHER_ORDER:
            raise ValueError(f"{rest[0]} is no higher-order operator that can be sent")
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
    """Whether what has this name talks to other ranks: torch's functional collectives, and operators of others that
    name a group (``vllm::all_reduce``).
    """
    if name[0] == "cop":
        try:
            return names_group(getattr(getattr(getattr(torch.ops, name[1]), name[2]), name[3]))
        except AttributeError:
            return True  # not loaded here, so nobody can say
    return name[0] == "op" and name[1] in COLLECTIVE_OP_NAMESPACES


def names_group(target: object) -> bool:
    """Whether one of an operator's arguments is the name of a process group, torch's or of a library's own."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        return any(names_group(getattr(target, overload)) for overload in target.overloads())
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return any(argument.name == GROUP_ARGUMENT for argument in target._schema.arguments)


def modules_of(name: list[str]) -> dict[str, str]:
    """What a worker must have for this target, with digests: modules to import, and operators to define."""
    if name[0] != "cop":
        return {}
    _, _, _, _, modules, digest, _, *source = name
    found = {modules: digest} if modules else {}
    for units in source:
        found.update(custom_ops.digests(units))
    return found


def decode(name: list[str]) -> Any:
    """The object that ``encode`` named; raises ValueError, ImportError or AttributeError for a name of nothing."""
    if name[0] in ("fn", "local") and not (_is_torchs_own(name[1]) or name[1] in _NAMESPACES):
        raise ValueError(f"{name[1]} is not a module of torch")
    # An operator of the program's own is looked for each time: a cell that is run again defines it anew.
    return _decode.__wrapped__(tuple(name)) if name[0] == "cop" and name[7:] else _decode(tuple(name))


# Frequent targets, named ahead of time: the lookup of a graph should not pay for a search of torch's namespaces.
for _function in (operator.getitem, operator.add, operator.mul, operator.sub, operator.truediv, math.sqrt):
    _NAMES[id(_function)] = (_function, ["fn", _function.__module__, _function.__name__])
