"""Describes guarded values in more detail than Dynamo's guards.

A trace also reads a module's hooks, the names of an object's attributes, the memory that tensors share, and marks of
dynamic dimensions. Dynamo does not guard on these, so a fact (guard_facts.py) includes them.

Private names: torch._C._dispatch_keys, torch.utils._pytree.{SUPPORTED_NODES, CONSTANT_NODES},
torch._subclasses.fake_tensor.FakeTensor.{pytype, dispatch_keys}, torch.utils._python_dispatch._disable_current_modes,
torch.Tensor._is_view, torch.UntypedStorage._cdata. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import random
import types
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from precompiled.core.errors import Bypass
from precompiled.core.looks import is_a, namespace_of
from precompiled.packages.describe import descriptions
from precompiled.packages.describe.codes import code_digest
from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo import optimizers, ranks
from precompiled.torch_internals.graph import subclass_context

_DIMENSION_MARKS = tuple(
    """
    _dynamo_dynamic_indices _dynamo_weak_dynamic_indices _dynamo_unbacked_indices _dynamo_strict_unbacked_indices
    _dynamo_static_indices _dynamo_shape_ids _dynamo_unbacked_bounds _dynamo_dynamic_range
    """.split()
)
_HOOKS = tuple("_forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks _state_dict_hooks".split())
_HOOKS_WITH = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")
# Dynamo guards only on the types of these values, but a trace may compare the values.
_NATIVE = (bytes, bytearray, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal)
_ALIGNMENT = 16  # bytes: torch/_inductor/utils.py, ALIGNMENT


def tensor(value: Any, described: Descriptions) -> object:
    """Describe a tensor without its sizes, in the order of difference.TENSOR."""
    if not is_a(value, torch.Tensor):
        raise NotPortable(f"a {type(value).__qualname__} is an input", code="package-guard")
    marks = {name: _ordered(getattr(value, name)) for name in _DIMENSION_MARKS if hasattr(value, name)}
    return [
        described.a_class(kind_of(value)),
        str(value.dtype),
        str(value.device),
        str(value.layout),
        value.requires_grad,
        repr(_dispatch_keys(value)),
        marks,
        _memory(value, described),
        value.is_leaf,
        _is_aligned(value),
        value._is_view(),
        # isinstance accepts a tensor with the attribute _is_param, such as a fake parameter of watch mode.
        isinstance(value, torch.nn.Parameter),
        isinstance(value, torch.nn.Buffer),
    ]


def exactly(value: Any, described: Descriptions) -> object:
    """Describe a tensor with its sizes and strides.

    This description is for tensors that Dynamo guards by identity, or assumes to stay the same object. For all other
    tensors, Dynamo's guards say which sizes the trace accepts.
    """
    strides = value.stride() if value.layout is torch.strided else ()
    return [tensor(value, described), described.number(value), *(repr(tuple(item)) for item in (value.shape, strides))]


def metadata(value: Any) -> object:
    """The metadata of a tensor subclass. Dynamo guards on the inner tensors by their own sources."""
    names, context = value.__tensor_flatten__()
    try:
        return [list(names), subclass_context.encode(context, {})]
    except Bypass as reason:
        raise NotPortable(str(reason), code="package-guard") from reason


# Attributes that torch sets and that a fact leaves out. The first two are hints, and no guard reads them: a trace sets
# the first, and compiled code sets the second on its outputs. ``__hash__`` and ``__bool__`` appear on a mock when a
# trace hashes the mock, or when torch 2.11 tests its truth. Python itself reads these two only from the class.
_SET_BY_TORCH = {optimizers.STATIC, "_dynamo_propagated_dynamic_indices", "__hash__", "__bool__"}


def attribute_names(value: object) -> list[str]:
    """Return the names of an object's attributes, because ``__getattr__`` may return a value for a missing name."""
    if is_a(value, (type, types.ModuleType)):
        return []
    names = {str(name) for name in namespace_of(value)} - _SET_BY_TORCH
    if is_a(value, torch.nn.Module):
        for held in ("_parameters", "_buffers", "_modules"):
            names |= {f"{held}.{name}" for name in vars(value).get(held, ())}
    return sorted(map(ranks.without_key, names))


def hooks(value: object, described: Descriptions) -> object:
    """Describe a module's hooks, on which a trace depends without a guard."""
    if not is_a(value, torch.nn.Module):
        return None
    state = vars(value)
    found: dict[str, object] = {
        name: [_hook(hook, described) for hook in hooks.values()] for name in _HOOKS if (hooks := state.get(name))
    }
    for name in _HOOKS_WITH:  # a hook's position in the table describes it
        if ids := state.get(name):
            of = state["_forward_pre_hooks" if "_pre_" in name else "_forward_hooks"]
            found[name] = [number for number, id in enumerate(of) if id in ids]
    return found


def _hook(hook: Any, described: Descriptions) -> object:
    if ranks.is_of_fully_shard(hook):
        return ["method of fully_shard", described.a_class(type(hook.__self__)), hook.__func__.__qualname__]
    if type(hook) is functools.partial:
        given = [described.attribute(item) for item in (hook.args, hook.keywords)]
        return ["partial", _hook(hook.func, described), *given]
    # Dynamo guards on the values that a hook reads in its closure, so an object in the closure (a tensor in a table)
    # needs no description. But Dynamo does not guard on which hooks exist, so a bound method needs a description.
    return described.attribute(hook) if type(hook) is types.FunctionType else described.value(hook)


def within(value: Any, described: Descriptions) -> object:
    """Describe what Dynamo reads from an object (the mode of a decorator, say) if Dynamo guards only on the type."""
    if is_a(value, types.MethodType):
        of = value.__self__
        return ["method", described.attribute(value.__func__), described.a_class(type(of)), within(of, described)]
    if is_a(value, random.Random):
        raise NotPortable("the state of a random.Random is part of the trace")
    if is_a(value, _NATIVE):
        return repr(value)
    held = next((kind for kind in (dict, list, tuple, set, frozenset) if is_a(value, kind)), None)
    if held is not None and type(value) is not held:
        return held.__len__(value)
    if type(value).__module__.split(".")[0] in ("torch", "contextlib") and hasattr(type(value), "__enter__"):
        state = [[name, described.attribute(held)] for name, held in getattr(value, "__dict__", {}).items()]
        return [described.a_class(type(value)), state]
    return None


def kind_of(value: Any) -> type:
    """A value's type. For a fake tensor, the type of the real tensor, because watch mode traces with fake tensors."""
    if is_a(value, FakeTensor):
        return torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else value.pytype or torch.Tensor
    return type(value)


def _dispatch_keys(value: torch.Tensor) -> object:
    if not is_a(value, FakeTensor):
        return torch._C._dispatch_keys(value)
    if value.dispatch_keys is not None:
        return value.dispatch_keys
    with _disable_current_modes(), torch.inference_mode(value.is_inference()):
        # A fake conjugate view, for example, lacks special keys, so its entry will not serve a real conjugate view.
        return torch._C._dispatch_keys(torch.empty(0, dtype=value.dtype, device=value.device, layout=value.layout))


def _ordered(marks: object) -> object:
    """Sort marks without their hashes, which use addresses (``_DimRange(0, None, None)``)."""
    return sorted(map(repr, marks)) if isinstance(marks, (set, frozenset)) else repr(marks)


def _is_aligned(value: torch.Tensor) -> bool:
    """Whether a tensor is aligned.

    Inductor assumes that an aligned parameter stays aligned (copy_misaligned_inputs).
    """
    if value.layout is not torch.strided:
        return True
    offset = value.storage_offset()
    return not isinstance(offset, int) or offset * value.element_size() % _ALIGNMENT == 0


def _memory(value: torch.Tensor, described: Descriptions) -> list[int]:
    """Return the index of a tensor's storage, and the tensor's offset in the storage.

    Inputs that share memory give a different graph, and Dynamo does not guard on the sharing.
    """
    if value.layout is not torch.strided:
        return [-1, 0]
    offset = value.storage_offset()
    return [described.memory(value.untyped_storage()._cdata), offset if isinstance(offset, int) else -1]


def _registered(kind: type) -> object:
    """Describe how pytree flattens objects of this class. A trace depends on this, but Dynamo has no guard."""
    node = pytree.SUPPORTED_NODES.get(kind)
    if node is None:
        return "constant" if kind in pytree.CONSTANT_NODES else None
    functions = (node.flatten_fn, node.unflatten_fn)
    return [
        code_digest(function.__code__) if isinstance(function, types.FunctionType) else type(function).__qualname__
        for function in functions
    ]


descriptions.registered = _registered
