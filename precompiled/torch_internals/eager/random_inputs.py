"""Makes real inputs for a stored graph, with random values.

Values are normally distributed. An input with at most one dimension and without a gradient may be a statistic or a
second moment. Its values are positive, because a graph may take their roots. Integers are 0 or 1, because they may be
indices.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from precompiled.core.errors import CompileFailed
from precompiled.torch_internals.graph.symbolic_sizes import evaluate

if TYPE_CHECKING:
    from precompiled.core.program_data import InputData, InputsData


def make(inputs: InputsData, hints: list[int], floats: list[float]) -> list[Any]:
    """Make the inputs of an ``inputs`` section. Raises CompileFailed if the section has frozen weights, or inputs other
    than plain tensors and sizes.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    return [_make(item, hints, floats, storages) for item in inputs["args"]]


def _make(item: InputData, hints: list[int], floats: list[float], storages: dict[int, torch.UntypedStorage]) -> Any:
    if "size" in item:
        return evaluate(item["size"], hints)
    if "dtype" not in item or "content" in item:
        said = "an input is not a plain tensor, or a frozen weight, whose values the store does not keep"
        raise CompileFailed(said, code="unsupported-input")
    dtype = getattr(torch, item["dtype"])
    shape, stride = ([evaluate(size, hints) for size in item[name]] for name in ("shape", "stride"))
    storage = storages.get(item.get("shares", -1))
    if storage is None:
        count = -(-evaluate(item["storage"], hints) // dtype.itemsize)
        storage = _random(count, dtype, item, is_positive=len(shape) < 2 and not item["requires_grad"])
        if "shares" in item:
            storages[item["shares"]] = storage
    made = torch.empty(0, dtype=dtype, device=item["device"])
    made.set_(storage, evaluate(item["offset"], hints), shape, stride)
    if "float" in item:
        made.fill_(floats[item["float"]])
    return made.requires_grad_(item["requires_grad"])


def _random(count: int, dtype: torch.dtype, item: InputData, *, is_positive: bool) -> torch.UntypedStorage:
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(0, 2, (count,), device=item["device"]).to(dtype).untyped_storage()
    made = torch.rand(count, device=item["device"]) + 0.5 if is_positive else torch.randn(count, device=item["device"])
    return made.to(dtype).untyped_storage()
