"""Encodes and decodes placements, and the context of a DTensor (the second result of ``__tensor_flatten__``).

In torch 2.13 and 2.15, a DTensor's context contains the placements, the tensor's metadata, the order of shards and
requires_grad. The mesh is a separate part of the flattened DTensor, like the local tensor. In 2.11 the context contains
the mesh, so DTensors are refused.

Private names: torch.distributed.tensor.DTensor.{__tensor_flatten__, __tensor_unflatten__},
torch.distributed.tensor._dtensor_spec.{ShardOrderEntry, TensorMeta},
torch.distributed.tensor.placement_types._StridedShard. Checked on 2.13.0, 2.15.0.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from precompiled.core.errors import Bypass

_PLACEMENTS = "torch.distributed.tensor.placement_types"


def is_dtensor(value: object) -> bool:
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and type(value) is loaded.DTensor


def is_placement(value: object) -> bool:
    loaded = sys.modules.get(_PLACEMENTS)
    return loaded is not None and isinstance(value, loaded.Placement)


def encode_placement(value: Any) -> list[Any]:
    """Plain data for a placement. Raises Bypass for unknown kinds, and for placements with additional state."""
    name = type(value).__name__
    if name == "Replicate":
        encoded = [name]
    elif name == "Shard":
        encoded = [name, value.dim]
    elif name == "Partial":
        encoded = [name, value.reduce_op]
    elif name == "_StridedShard":
        encoded = [name, value.dim, value.split_factor]
    else:
        raise _unknown(value)
    if any(type(item) not in (int, str) for item in encoded):
        raise _unknown(value)
    again = decode_placement(encoded)
    if type(again) is not type(value) or again != value:
        raise _unknown(value)
    return encoded


def decode_placement(encoded: Sequence[object]) -> object:
    from torch.distributed.tensor import placement_types

    name, *arguments = encoded
    if name == "_StridedShard":
        return placement_types._StridedShard(arguments[0], split_factor=arguments[1])
    if name not in ("Replicate", "Shard", "Partial"):
        raise ValueError(f"unknown placement {name!r}")
    return getattr(placement_types, name)(*arguments)


def _unknown(value: object) -> Bypass:
    return Bypass(f"the graph has the placement {value}", code="unsupported-argument")


def encode_context(value: Any, position: int) -> dict[str, object]:
    """The context of a DTensor, without the sizes, because the encoded tensor contains them.

    Raises Bypass for an unknown form.
    """
    attributes, context = value.__tensor_flatten__()
    if attributes != ["_local_tensor", "device_mesh"] or len(context) != 4:
        raise Bypass(f"input {position} is a DTensor of an unknown form", code="unsupported-input")
    placements, meta, order, requires_grad = context
    if requires_grad != value.requires_grad or meta is None:
        raise Bypass(f"input {position} is a DTensor whose parts differ", code="unsupported-input")
    return {
        "placements": [encode_placement(placement) for placement in placements],
        "dtype": str(meta.dtype).removeprefix("torch."),
        "order": order and [[entry.tensor_dim, list(entry.mesh_dims)] for entry in order],
        "none": order is None,
        "requires_grad": requires_grad,
    }


def decode_context(encoded: dict[str, Any], shape: torch.Size, stride: tuple[object, ...]) -> tuple[object, ...]:
    from torch.distributed.tensor._dtensor_spec import ShardOrderEntry, TensorMeta

    order = tuple(ShardOrderEntry(dim, tuple(mesh_dims)) for dim, mesh_dims in encoded["order"] or ())
    return (
        tuple(decode_placement(placement) for placement in encoded["placements"]),
        TensorMeta(shape, stride, getattr(torch, encoded["dtype"])),
        None if encoded["none"] else order,
        encoded["requires_grad"],
    )
