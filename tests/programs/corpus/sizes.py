"""Rows of the corpus about sizes and scalars that change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from corpus.rows import Row, linear, rand, row


@row
def automatic_dynamic() -> Row:
    return Row(linear(16, 16), [(rand(rows, 16),) for rows in (8, 12, 20)])


@row
def marked_dynamic() -> Row:
    def marked(rows: int) -> torch.Tensor:
        x = rand(rows, 16)
        torch._dynamo.mark_dynamic(x, 0)
        return x

    return Row(linear(16, 16), [(marked(rows),) for rows in (8, 12)])


@row
def marked_unbacked() -> Row:
    def marked(rows: int) -> torch.Tensor:
        x = rand(rows, 16)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        return x

    return Row(linear(16, 16), [(marked(rows),) for rows in (8, 12)])


@row
def marked_unbacked_twice() -> Row:
    """The two sizes must be equal. Only the shape environment asserts this equality; the graph does not."""

    def marked(rows: int) -> torch.Tensor:
        x = rand(rows, 16, grad=False)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        return x

    return Row(lambda x, y: (x + y).sin(), [(marked(rows), marked(rows)) for rows in (8, 12)])


@row
def an_assertion_on_an_unbacked_size() -> Row:
    """Dynamo creates the assertion during the trace, and Inductor's code checks it. For the odd size, eager and plain
    torch.compile raise an error.
    """

    def asserted(function: Callable[..., torch.Tensor], x: torch.Tensor) -> list[Any]:
        torch._dynamo.decorators.mark_unbacked(x, 0)
        try:
            return [function(x)]
        except RuntimeError:
            return [None]

    calls = [(rand(rows, 3, grad=False),) for rows in (8, 10, 7)]
    return Row(lambda x: x.view(-1, 2, 3).sum(1), calls, run=asserted)


@row
def all_dynamic() -> Row:
    return Row(
        lambda x, scale: F.layer_norm(x, (x.shape[-1],), eps=1e-5) * scale,
        [(rand(8, 16), 0.5), (rand(12, 24), 1.5)],
        compile={"dynamic": True},
    )


@row
def all_dynamic_with_floats_of_modules() -> Row:
    model = torch.nn.Sequential(torch.nn.LayerNorm(16), torch.nn.Linear(16, 16), torch.nn.RMSNorm(16, eps=1e-6))
    return Row(model, [(rand(rows, 16),) for rows in (8, 12)], compile={"dynamic": True})


@row
def a_float_that_changes() -> Row:
    return Row(lambda x, rate: x.sin() * rate + rate, [(rand(8), rate) for rate in (0.1, 0.2, 0.3)])


@row
def a_float_that_is_branched_on() -> Row:
    return Row(lambda x, rate: x.sin() if rate > 0.15 else x.cos(), [(rand(8), rate) for rate in (0.1, 0.2, 0.3)])


@row
def an_int_that_changes() -> Row:
    return Row(lambda x, n: x.sin() * n, [(rand(8), n) for n in (2, 3, 5)])


@row
def a_bool_that_changes() -> Row:
    return Row(lambda x, flag: x.sin() if flag else x.cos(), [(rand(8), flag) for flag in (True, False)])


@row
def nonzero_inside() -> Row:
    return Row(
        lambda x: x[x > 0].sum() * 2,
        [(rand(16),), (rand(16),)],
        around=lambda: torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True),
    )


@row
def an_item_inside() -> Row:
    return Row(
        lambda x, n: x.sin() * n.item(),
        [(rand(16), torch.tensor(3)), (rand(16), torch.tensor(4))],
        around=lambda: torch._dynamo.config.patch(capture_scalar_outputs=True),
    )


@row
def a_size_after_a_graph_break() -> Row:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x[x > 0]
        return y.sin().sum() * y.shape[0]

    return Row(function, [(rand(16),), (rand(16),), (rand(16),)])


@row
def pool_of_any_size() -> Row:
    """AOTAutograd's guards limit compiled code to the size for which it was compiled."""
    return Row(lambda x: F.adaptive_avg_pool2d(x[None, None], 3), [(rand(rows, rows),) for rows in (7, 9, 12, 16)])


@row
def branch_on_a_size() -> Row:
    return Row(lambda x: (x * 2 if x.shape[0] > 20 else x).sum(0), [(rand(rows, 16),) for rows in (8, 12, 30)])


@row
def pool_to_a_given_size() -> Row:
    """The size is an input of the graph, although Dynamo later finds that it has only one possible value."""
    return Row(
        lambda x, size: F.adaptive_max_pool3d_with_indices(x, size, return_indices=True),
        [(rand(3, 8, 9, last, grad=False), (5, 6, 7)) for last in (10, 12)],
        compile={"dynamic": True},
    )


@row
def pad_by_what_a_stride_leaves() -> Row:
    def function(x: torch.Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> torch.Tensor:
        height, width = x.size()[-2:]
        below = max((math.ceil(height / stride[0]) - 1) * stride[0] + kernel[0] - height, 0)
        beside = max((math.ceil(width / stride[1]) - 1) * stride[1] + kernel[1] - width, 0)
        return F.pad(x, [beside // 2, beside - beside // 2, below // 2, below - below // 2])

    return Row(function, [(rand(2, 4, 11, size), (5, 5), (2, 2)) for size in (11, 14)], compile={"dynamic": True})


@row
def an_assertion_on_an_item() -> Row:
    """The item must equal an expression of sizes, so Dynamo uses one node for both. Eager and plain torch.compile raise
    an error if item and expression differ.
    """

    def function(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        value = (n + 7).item()
        torch._check(value == x.size(0) + x.size(1))
        return x + value

    def asserted(function: Callable[..., torch.Tensor], x: torch.Tensor, n: torch.Tensor) -> list[Any]:
        for dimension in (0, 1):
            torch._dynamo.mark_dynamic(x, dimension)
        try:
            return [function(x, n)]
        except RuntimeError:
            return [None]

    return Row(
        function,
        [(rand(16, 10, grad=False), torch.tensor(n)) for n in (19, 32)],
        run=asserted,
        around=lambda: torch._dynamo.config.patch(capture_scalar_outputs=True),
    )
