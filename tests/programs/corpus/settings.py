"""Settings of Inductor's that change what kind of code it makes."""

from __future__ import annotations

import torch

from corpus.rows import Row, linear, rand, row


@row
def cpp_wrapper() -> Row:
    return Row(linear(16, 32, 4), [(rand(8, 16),)], compile={"options": {"cpp_wrapper": True}})


@row
def cpp_wrapper_of_any_size() -> Row:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return (x * torch.tensor([1.0, 2.0, 3.0])).softmax(0) + x.shape[0], x.shape[0] * 2

    calls = [(rand(rows, 3, grad=False),) for rows in (8, 12)]
    return Row(function, calls, compile={"dynamic": True, "options": {"cpp_wrapper": True}})
