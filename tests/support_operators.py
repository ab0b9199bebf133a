"""Support: custom operators that tests encode. This module imports only torch, as support_values.py explains."""

from __future__ import annotations

import torch


@torch.library.custom_op("precompiled_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("precompiled_tests::of_a_group", mutates_args=())
def of_a_group(x: torch.Tensor, group_name: str) -> torch.Tensor:
    return x.clone()


@of_a_group.register_fake
def _(x: torch.Tensor, group_name: str) -> torch.Tensor:
    return torch.empty_like(x)


LIBRARY = torch.library.Library("precompiled_tests_library", "DEF")
LIBRARY.define("tripled(Tensor x) -> Tensor")
LIBRARY.impl("tripled", lambda x: x * 3, dispatch_key="CPU")


@torch.library.register_fake("precompiled_tests_library::tripled")
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)
