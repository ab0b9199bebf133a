"""Classes and functions for rows of the corpus, in a module that a worker can import."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from corpus import constants


@torch.library.custom_op("corpus::scaled_sine", mutates_args=())
def scaled_sine(x: torch.Tensor, scale: float) -> torch.Tensor:
    return x.sin() * scale


@scaled_sine.register_fake
def _(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    (x, ctx.scale) = inputs
    ctx.save_for_backward(x)


def _backward(ctx: Any, gradient: torch.Tensor) -> Any:
    return gradient * ctx.saved_tensors[0].cos() * ctx.scale * constants.BACKWARD_FACTOR, None


scaled_sine.register_autograd(_backward, setup_context=_setup)


LIBRARY = torch.library.Library("corpus_library", "DEF")
LIBRARY.define("shifted(Tensor x) -> Tensor")
LIBRARY.impl("shifted", lambda x: x.cos() + 1.0, dispatch_key="CPU")


@torch.library.register_fake("corpus_library::shifted")
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


torch.library.register_autograd(
    "corpus_library::shifted",
    lambda ctx, gradient: -gradient * ctx.saved_tensors[0].sin(),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """A checkpoint policy that saves matrix products and recomputes all other results."""
    if op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def contexts() -> Any:
    return create_selective_checkpoint_contexts(policy)


class Kind(enum.Enum):
    LOUD = 1


@dataclass(frozen=True)
class Described:
    word: str
    kind: Kind


class Tagged(torch.Tensor):
    """A tensor subclass that wraps one tensor and has a tag, which is a word or an object."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor, tag: Any) -> Tagged:
        made: Tagged = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=inner.requires_grad,
        )
        return made

    def __init__(self, inner: torch.Tensor, tag: Any) -> None:
        self.inner, self.tag = inner, tag

    def __repr__(self) -> str:
        return f"Tagged({self.inner!r}, {self.tag!r})"

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["inner"], self.tag

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], tag: Any, size: Any, stride: Any) -> Tagged:
        return Tagged(inner["inner"], tag)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tags = [x.tag for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Tagged)]
        args, kwargs = torch.utils._pytree.tree_map_only(Tagged, lambda x: x.inner, (args, kwargs or {}))
        result = func(*args, **kwargs)
        return torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: Tagged(x, tags[0]), result)
