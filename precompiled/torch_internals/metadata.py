"""The metadata of a graph's inputs: read from Dynamo's fake tensors in the client, made again in the worker.

A backend's ``example_inputs`` are real tensors for parameters; the placeholders' fake tensors
(``node.meta["example_value"]``) say the same without a weight travelling anywhere.

Private names: node.meta keys "example_value" and "tensor_dict" (torch/_dynamo/output_graph.py),
torch._subclasses.fake_tensor.{FakeTensor, FakeTensorMode}, torch._C._functions.DelayedError (what
torch/_subclasses/meta_utils.py gives a non-leaf as history). Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from precompiled.errors import Bypass

# Flags that Dynamo sets on an input's tensor_dict and that AOTAutograd or Inductor read.
_TENSOR_FLAGS = ("_dynamo_static_input_type",)
# Anything else of torch's own in there changes what is compiled in ways we do not carry over.
_KNOWN_FLAGS = frozenset(
    {*_TENSOR_FLAGS, "_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_is_hf_initialized"}
)


def describe_inputs(placeholders: list[torch.fx.Node]) -> list[dict[str, Any]]:
    """One plain dict a placeholder. Raises Bypass for inputs that are not static, plain, unaliased tensors."""
    described = []
    storages: dict[int, int] = {}
    for position, node in enumerate(placeholders):
        value = node.meta.get("example_value")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise Bypass("the graph has a symbolic size as input", code="dynamic-shapes")
        if not isinstance(value, FakeTensor) or type(value) not in (FakeTensor, torch.nn.Parameter):
            raise Bypass(f"input {position} is a {type(value).__name__}, not a plain tensor", code="unsupported-input")
        described.append(_describe(value, node.meta.get("tensor_dict") or {}, position))
        storage = value.untyped_storage()._cdata
        if (other := storages.setdefault(storage, position)) != position:
            raise Bypass(f"inputs {other} and {position} share their memory", code="aliased-inputs")
    return described


def _describe(value: FakeTensor, flags: dict[str, Any], position: int) -> dict[str, Any]:
    if value.layout is not torch.strided:
        raise Bypass(f"input {position} has the layout {value.layout}", code="unsupported-layout")
    if value.is_quantized or value.is_conj() or value.is_neg() or value.is_nested:
        raise Bypass(
            f"input {position} is quantized, nested, or a lazy conjugate or negative", code="unsupported-input"
        )
    shape, stride = tuple(value.shape), tuple(value.stride())
    if not all(type(size) is int for size in (*shape, *stride, value.storage_offset())):
        raise Bypass(f"input {position} has symbolic sizes", code="dynamic-shapes")
    odd = [name for name in flags if name.startswith("_dynamo") and name not in _KNOWN_FLAGS]
    if odd:
        raise Bypass(f"input {position} is marked {', '.join(sorted(odd))}", code="marked-input")
    return {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": shape,
        "stride": stride,
        "offset": value.storage_offset(),
        "storage": value.untyped_storage().nbytes(),
        "device": str(value.device),
        "requires_grad": value.requires_grad,
        "leaf": value.is_leaf,
        "inference": value.is_inference(),
        "parameter": isinstance(value, torch.nn.Parameter),
        "flags": {name: flags[name] for name in _TENSOR_FLAGS if flags.get(name) is not None},
    }


def new_fake_mode() -> FakeTensorMode:
    """A mode such as Dynamo makes for a frame: with a shape environment, refusing real tensors."""
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=False)


def make_inputs(described: list[dict[str, Any]], mode: FakeTensorMode) -> list[torch.Tensor]:
    """Fake tensors of ``mode`` with just this metadata."""
    return [_make(item, mode) for item in described]


def _make(item: dict[str, Any], mode: FakeTensorMode) -> torch.Tensor:
    dtype = getattr(torch, item["dtype"])
    elements, rest = divmod(item["storage"], dtype.itemsize)
    with mode, torch.inference_mode(item["inference"]), torch.no_grad():
        if rest == 0:
            # The whole storage is made and then viewed: what is compiled may depend on the offset (alignment).
            whole = torch.empty(elements, dtype=dtype, device=item["device"])
            made = torch.as_strided(whole, item["shape"], item["stride"], item["offset"]).detach()
        else:
            made = torch.empty_strided(item["shape"], item["stride"], dtype=dtype, device=item["device"])
        if item["parameter"]:
            made = torch.nn.Parameter(made, requires_grad=item["requires_grad"])
        elif item["requires_grad"]:
            made.requires_grad_(True)
    if item["requires_grad"] and not item["leaf"]:
        with torch.enable_grad():
            made = torch._C._functions.DelayedError("backward through an example input", 1)(made)
    return made
