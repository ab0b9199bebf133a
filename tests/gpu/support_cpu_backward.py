"""Support: a custom operator on a GPU whose backward computes on the CPU. A worker can import this module."""

from __future__ import annotations

from typing import Any

import torch


@torch.library.custom_op("precompiled_tests::with_a_backward_on_the_cpu", mutates_args=())
def with_a_backward_on_the_cpu(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@with_a_backward_on_the_cpu.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad.cpu().sin().exp().to(grad.device)


with_a_backward_on_the_cpu.register_autograd(_backward)
