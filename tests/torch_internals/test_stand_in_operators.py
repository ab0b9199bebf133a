"""Tests of operators whose eager run saves more tensors for the backward than compiled code does.

A program may change such a tensor in place between forward and backward. If plain torch.compile allows the change, the
stand-in must allow it too, with equal gradients. "Plain" means AOTAutograd with Inductor's decompositions and
partitioner, and ATen operators in place of generated code (tests/fuzz/contenders.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))

from precompiled.torch_internals.eager.stand_in import StandIn
from tests.fuzz import contenders

pytestmark = pytest.mark.integration

Operator = Callable[[torch.Tensor], torch.Tensor]
ZEROS = torch.zeros(())
FIRST = torch.zeros(4, 1, dtype=torch.long)
WEIGHT = torch.ones(8, 8)

KEEP_TOO_MUCH: dict[str, Operator] = {
    "amax": lambda x: x.amax(),
    "amax of a dimension": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(),
    "clamp": lambda x: x.clamp(0.2, 0.8),
    "clamp, max": lambda x: x.clamp(max=0.5),
    "clamp_min": lambda x: x.clamp_min(0.3),
    "clip": lambda x: x.clip(0.1, 0.9),
    "cummax": lambda x: x.cummax(-1).values,
    "fmax": lambda x: torch.fmax(x, ZEROS),
    "gather": lambda x: x.gather(1, FIRST),
    "hardshrink": F.hardshrink,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "max": lambda x: x.max(),
    "max of two": lambda x: torch.max(x, ZEROS),
    "max_pool1d": lambda x: F.max_pool1d(x[None], 2),
    "max_pool2d": lambda x: F.max_pool2d(x[None, None], 2),
    "maximum": lambda x: torch.maximum(x, ZEROS),
    "median": lambda x: x.median(),
    "min": lambda x: x.min(),
    "minimum": lambda x: torch.minimum(x, ZEROS + 0.5),
    "nan_to_num": torch.nan_to_num,
    "nansum": torch.nansum,
    "prelu": lambda x: F.prelu(x, torch.tensor([0.2])),
    "prod": lambda x: x.prod(),
    "prod of a dimension": lambda x: x.prod(-1),
    "relu": F.relu,
    "relu6": F.relu6,
    "sgn": torch.sgn,
    "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 0.0),
    "of a view": lambda x: x.t().clamp(0.2, 0.8),
    "of what is of that type": lambda x: x.float().clamp(0.2, 0.8),
    "of what is there": lambda x: x.to(x.device, x.dtype).clamp(0.2, 0.8),
    "of what is contiguous": lambda x: x.contiguous().clamp(0.2, 0.8),
    "of what is not dropped": lambda x: F.dropout(x, 0.1, training=False).clamp(0.2, 0.8),
    "of an attribute": lambda x: x.T.clamp(0.2, 0.8),
    "of windows": lambda x: x.unfold(1, 2, 1).clamp(0.2, 0.8),
    "by its overload": lambda x: torch.ops.aten.clamp.default(x, 0.2, 0.8),
    "by its name": torch.ops.aten.leaky_relu,
    "by two overloads": lambda x: torch.ops.aten.max.dim(torch.ops.aten.slice.Tensor(x, 1, 0, 4), -1)[0],
    "max_pool2d_with_indices": lambda x: torch.ops.aten.max_pool2d_with_indices.default(x[None, None], [2, 2])[0],
    "between others": lambda x: F.leaky_relu(x) @ WEIGHT,
}
# For each of these operators, eager code saves the same tensors as compiled code.
OTHERS: dict[str, Operator] = {
    "cumprod": lambda x: x.cumprod(-1),
    "elu": F.elu,
    "exp": torch.exp,
    "gelu": F.gelu,
    "hardswish": F.hardswish,
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "linear": lambda x: F.linear(x, WEIGHT),
    "logsumexp": lambda x: x.logsumexp(-1),
    "norm": torch.norm,
    "scaled": lambda x: x * 2,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softmax": lambda x: x.softmax(-1),
    "softplus": F.softplus,
    "sort": lambda x: x.sort().values,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tanh": torch.tanh,
    "topk": lambda x: x.topk(2).values,
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
}


def of_the_input(function: Operator, x: torch.Tensor) -> torch.Tensor:
    output = function(x)
    x.mul_(2)
    return output.sum() + x.sum()


def of_the_output(function: Operator, x: torch.Tensor) -> torch.Tensor:
    return function(x).mul_(2).sum()


def stand_in(module: torch.fx.GraphModule, _inputs: list[Any]) -> StandIn:
    return StandIn(module)


def gradient(backend: Any, operator: Operator, change: Callable[..., torch.Tensor]) -> torch.Tensor | None:
    """Returns the gradient of a weight before the operator, or None if torch refuses the change in place."""
    torch.manual_seed(0)
    weight, function = torch.rand(8, 8, requires_grad=True), torch.compile(operator, backend=backend)
    try:
        change(function, torch.rand(4, 8) @ weight * 0.2).backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error) or "is a view" in str(error), error
        return None
    return weight.grad


@pytest.mark.parametrize("change", [of_the_input, of_the_output])
@pytest.mark.parametrize("name", [*KEEP_TOO_MUCH, *OTHERS])
def test_in_place_change_that_plain_torch_allows_is_allowed(name: str, change: Callable[..., torch.Tensor]) -> None:
    operator = KEEP_TOO_MUCH.get(name) or OTHERS[name]
    with contenders.settings(eagers_random_numbers=True):
        plain = gradient(contenders.compiled, operator, change)
        torch._dynamo.reset()
        ours = gradient(stand_in, operator, change)
    if plain is not None:
        assert ours is not None, "the stand-in refuses a change that plain allows"
        torch.testing.assert_close(ours, plain)
