"""Determines what the operations of a graph do to their arguments: change them, return views of them, or keep them.

An operator's schema shows these effects if the graph calls the operator by its overload (``aten.mul_.Tensor``). Graphs
of ``make_fx`` and ``torch.export`` call overloads, and all graphs call the overloads of custom operators. This file
judges other operations by their names (a trailing ``_``, or the lists below) and by their arguments ``inplace`` and
``out``.

This file reads the attributes alias_info and is_out of a schema's arguments and return values.

Private names: torch._ops.{HigherOrderOperator, OpOverload, OpOverloadPacket}, torch._ops.OpOverload._schema.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch
import torch.fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from precompiled.torch_internals.graph.call_targets import BUILTIN_OP_NAMESPACES

# Operations that change a tensor's metadata or history in place. If a graph applies such an operation to an input, its
# eager run must not use autograd_edges.py: the operators would get another tensor over the same memory, so the caller's
# tensor would keep its old metadata.
CHANGE_THE_TENSOR = frozenset(
    """
    as_strided_ detach_ requires_grad_ resize_ resize_as_ retain_grad set_ set_data shallow_copy_data_ squeeze_
    swapaxes_ swapdims_ t_ transpose_ unsqueeze_
    """.split()
)

# Operations that return a view of their first argument, or the first argument itself if it needs no change.
_VIEWS = frozenset(
    """
    H T _get_data_attr adjoint alias alpha_dropout as_strided as_tensor asarray atleast_1d atleast_2d atleast_3d
    bfloat16 broadcast_tensors broadcast_to chunk conj contiguous cpu cuda detach diagonal double dropout dropout1d
    dropout2d dropout3d dsplit einsum expand expand_as feature_alpha_dropout feature_dropout flatten float getitem half
    hsplit imag mH mT meshgrid moveaxis movedim narrow permute positive ravel real requires_grad_ reshape reshape_as
    resolve_conj resolve_neg select slice split split_with_sizes squeeze swapaxes swapdims t tensor_split to transpose
    type type_as unbind unflatten unfold unsafe_chunk unsafe_split unsqueeze view view_as view_as_complex view_as_real
    vsplit
    """.split()
)

# Operations that change their first argument although their name does not end in "_".
_WRITE = frozenset("iadd iand ifloordiv ilshift imatmul imod imul ior ipow irshift isub itruediv ixor setitem".split())

# Operations that keep their input for the backward, while compiled code keeps only a mask or indices. The list follows
# the backwards in torch's derivatives.yaml and Inductor's decompositions, and
# tests/torch_internals/test_stand_in_operators.py checks the list.
KEEP_THEIR_INPUT = frozenset(
    """
    amax amin aminmax clamp clamp_max clamp_min clip cummax cummin fmax fmin gather hardshrink hardsigmoid hardtanh
    leaky_relu max max_pool1d max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices maximum median min
    minimum nan_to_num nanmedian nansum prelu prelu_kernel relu6 rrelu sgn softshrink threshold
    """.split()
)

# Operations that set a mode of autograd, attention or autocast, or enter a transform, within a graph.
SET_MODES = frozenset(
    """
    _enter_autocast _enter_dual_level _grad_increment_nesting _jvp_increment_nesting _sdpa_kernel _sdpa_kernel_variadic
    _set_fwd_grad_enabled _set_grad_enabled _vmap_increment_nesting set_grad_enabled
    """.split()
)

_STATISTICS = ("running_mean", "running_var")
_TRAINS = ("training", "train", "use_input_stats")  # arguments that decide whether the statistics are updated


def name(node: torch.fx.Node) -> str:
    """The name of the function that an operation calls, or of the attribute that it reads (``x.T``)."""
    target = node.target
    if isinstance(target, OpOverload):
        return str(target._schema.name.rpartition("::")[2])
    if target is getattr and len(node.args) > 1:
        return str(node.args[1])
    return str(getattr(target, "__name__", target))


def writes(node: torch.fx.Node) -> bool:
    """Whether the operation changes one of its arguments in place."""
    if node.kwargs.get("out") is not None or any(_changes(schema) for schema in _schemas(node.target)):
        return True
    called = name(node)
    return (called.endswith("_") and not called.endswith("__")) or called in _WRITE or _is_inplace(node)


def written_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the arguments that an operation may change in place. If they are unknown, return all arguments."""
    if node.op not in ("call_function", "call_method"):
        return []
    names = _arguments(node.target, name(node))
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    changed = [node.kwargs.get("out")]
    if any(given.get(one) is not None for one in _STATISTICS) and not any(given.get(one) is False for one in _TRAINS):
        changed += [given.get(one) for one in _STATISTICS]
    if writes(node) or name(node) in CHANGE_THE_TENSOR:
        schemas = _schemas(node.target) or _schemas_of(name(node))
        places = {at for schema in schemas for at, item in enumerate(schema.arguments) if _is_written(item)}
        if places:
            called = {schema.arguments[at].name for schema in schemas for at in places if at < len(schema.arguments)}
            changed += [*(node.args[at] for at in places if at < len(node.args)), *(given.get(one) for one in called)]
        elif name(node) in _WRITE or _is_inplace(node):
            changed += node.args[:1] or node.all_input_nodes
        elif node.kwargs.get("out") is None:
            changed += node.all_input_nodes
    found: list[torch.fx.Node] = []
    torch.fx.node.map_arg(changed, found.append)
    return found


def may_draw(node: torch.fx.Node) -> bool:
    """Whether the operation may draw random numbers. True for operators that are not torch's own."""
    if not node.op.startswith("call_"):
        return False
    schemas = _schemas(node.target)
    if isinstance(node.target, HigherOrderOperator):
        # A higher-order operator contains graphs, whose nodes the caller checks itself.
        return "rng" in name(node) or "mutation" in name(node)
    if any(schema.name.partition("::")[0] not in BUILTIN_OP_NAMESPACES for schema in schemas):
        return True
    return "drop" in name(node) or "rand" in name(node) or _is_random(name(node).rstrip("_"))


@lru_cache(4096)
def _is_random(called: str) -> bool:
    packet = getattr(torch.ops.aten, called, None)
    overloads = packet.overloads() if isinstance(packet, OpOverloadPacket) else ()
    return any(torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags for overload in overloads)


@lru_cache(4096)
def _schemas_of(called: str) -> list[Any]:
    """The schemas of the ATen operators with this name."""
    return _schemas(getattr(torch.ops.aten, called, None))


def _arguments(target: object, called: str) -> list[str]:
    """The names of the arguments, in order. Empty if unknown, or if the operation is not a normalization."""
    if "_norm" not in called:
        return []
    if isinstance(target, FunctionType):
        return list(inspect.signature(target).parameters)
    schemas = _schemas(target) or _schemas_of(called)
    return [item.name for item in schemas[0].arguments] if schemas else []


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write and not argument.is_out


def gives_a_view(node: torch.fx.Node) -> bool:
    """Whether the operation may return a view of its first argument, or the first argument itself."""
    given = (item.alias_info for schema in _schemas(node.target) for item in schema.returns)
    if any(alias is not None and not alias.is_write for alias in given):
        return True
    return name(node) in _VIEWS


def _changes(schema: Any) -> bool:
    """Whether an operator with this schema changes an argument other than an ``out`` argument."""
    return any(_is_written(item) for item in schema.arguments)


def _schemas(target: object) -> list[Any]:
    """The schemas of the overloads that the target may call."""
    if isinstance(target, OpOverload):
        return [target._schema]
    if isinstance(target, OpOverloadPacket):
        return [getattr(target, overload)._schema for overload in target.overloads()]
    return []


def _is_inplace(node: torch.fx.Node) -> bool:
    """Whether an argument requests an in-place change. Modules pass ``inplace`` by position (``LeakyReLU``)."""
    if node.kwargs.get("inplace"):
        return True
    place = _place_of_inplace(node.target) if node.op == "call_function" else None
    return place is not None and len(node.args) > place and bool(node.args[place])


@lru_cache(256)  # bounded, because a program may create new functions without end
def _place_of_inplace(target: Any) -> int | None:
    try:
        names = list(inspect.signature(target).parameters)
    except (TypeError, ValueError):  # a builtin without a signature
        return None
    return names.index("inplace") if "inplace" in names else None


def with_unversioned_statistics(target: Any) -> Callable[..., object] | None:
    """Return a batch norm whose backward can run after the running statistics have changed.

    In training, torch's batch norm saves the running statistics for its backward, which never reads their values. But
    autograd raises an error if a saved tensor has changed. Returns None if the target is not a batch norm of torch.
    """
    if target is torch.nn.functional.batch_norm:
        names = list(inspect.signature(target).parameters)
    elif target is torch.batch_norm or "batch_norm" in getattr(target, "__name__", ""):
        schemas = _schemas(torch.ops.aten.batch_norm.default if target is torch.batch_norm else target)
        # Only torch's own batch norm is replaced: an operator of the program may use its statistics in any way.
        found = [
            [argument.name for argument in schema.arguments] for schema in schemas if schema.name.startswith("aten::")
        ]
        names = next((names for names in found if set(_STATISTICS) <= set(names)), [])
    else:
        return None
    if not names:
        return None
    trains = "with_update" in getattr(target, "__name__", "")  # this operator has no argument "training"

    def normalized(*args: object, **options: object) -> object:
        given = {**dict(zip(names, args, strict=False)), **options}
        if not given.get("training", trains):
            return target(*args, **options)
        apart = {one: value.data for one in _STATISTICS if isinstance(value := given.get(one), torch.Tensor)}
        taken = [apart.get(one, value) for one, value in zip(names, args, strict=False)]
        return target(*taken, **{**options, **{one: value for one, value in apart.items() if one in options}})

    return normalized
