"""A user's module with a custom op; what it is multiplied with in the backward lies in another module of his."""

from __future__ import annotations

import torch
import user_constants


@torch.library.custom_op("precompiled_user::scaled_sine", mutates_args=())
def scaled_sine(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x.sin() * factor


@scaled_sine.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


def _setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.x, ctx.factor = inputs


def _backward(ctx, gradient):  # type: ignore[no-untyped-def]
    return gradient * ctx.x.cos() * ctx.factor * user_constants.BACKWARD_FACTOR, None


scaled_sine.register_autograd(_backward, setup_context=_setup_context)
