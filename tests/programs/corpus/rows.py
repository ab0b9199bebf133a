"""Defines what a row of the corpus is, and how its function is called."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.testing._internal.two_tensor import TwoTensor

from corpus import modules

ROWS: dict[str, Callable[[], Row]] = {}


@dataclass
class Row:
    """A function or module, its calls, and how to run and compare these calls."""

    function: Callable[..., Any]
    calls: list[tuple[Any, ...]]  # arguments; each tuple is used for an eager and a compiled call, as separate copies
    around: Callable[[], Any] = contextlib.nullcontext  # a context around eager and compiled calls
    around_compiled: Callable[[], Any] = contextlib.nullcontext  # a context around compiled calls only
    compile: dict[str, Any] = field(default_factory=dict)
    rtol: float = 1e-3
    atol: float = 1e-4
    run: Callable[..., list[Any]] | None = None  # replaces a call and its backward; returns the tensors to compare


def row(make: Callable[[], Row]) -> Callable[[], Row]:
    ROWS[make.__name__] = make
    return make


def rand(*shape: int, grad: bool = True, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, requires_grad=grad)


def linear(*sizes: int) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))


def _copies(arguments: Any) -> Any:
    """Returns copies of the arguments, with equal strides and Dynamo's marks.

    The copies share memory if the originals do.
    """
    known: dict[int, Any] = {}

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in known:
            made = value.detach().clone(memory_format=torch.preserve_format)
            if value._is_view() and value._base is not None and not isinstance(value, (TwoTensor, modules.Tagged)):
                base = id(value._base)
                if base not in known:
                    known[base] = value._base.detach().clone()
                made = known[base].as_strided(value.shape, value.stride(), value.storage_offset())
            for name in vars(value):
                if name.startswith("_dynamo"):
                    setattr(made, name, getattr(value, name))
            known[id(value)] = made.requires_grad_(value.requires_grad)
        return known[id(value)]

    return pytree.tree_map(copy, arguments)


def called(function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
    """Call the function with copies of the arguments, and run a backward.

    Returns the outputs, the gradients, and the copies, which the call may have changed.
    """
    parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
    for parameter in parameters:
        parameter.grad = None
    arguments = _copies(arguments)
    output = function(*arguments)
    differentiable = [v for v in pytree.tree_leaves(output) if isinstance(v, torch.Tensor) and v.requires_grad]
    if differentiable:
        sum(
            (value.abs() if value.is_complex() else value).float().square().sum() for value in differentiable
        ).backward()
    leaves = [v for v in pytree.tree_leaves(arguments) if isinstance(v, torch.Tensor)]
    gradients = [v.grad for v in [*leaves, *parameters] if v.is_leaf and v.grad is not None]
    return [v.detach() for v in (*pytree.tree_leaves(output), *gradients, *leaves) if isinstance(v, torch.Tensor)]
