"""Rows of the corpus about kinds of inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from corpus.rows import Row, linear, rand, row


@row
def mutated_input() -> Row:
    return Row(lambda x: x.add_(1).sum(), [(rand(8, grad=False),)])


@row
def inputs_over_one_memory() -> Row:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + y

    def call() -> tuple[Any, ...]:
        base = torch.randn(16)
        return (base[:8], base[8:])

    return Row(function, [call()])


@row
def one_tensor_as_two_arguments() -> Row:
    x = rand(8)
    return Row(lambda a, b: a.sin() + b.cos(), [(x, x)])


@row
def views_as_outputs() -> Row:
    return Row(lambda x: (x.view(4, 4), x[2:6], x.t() if x.dim() == 2 else x.view(2, 8).t()), [(rand(16),)])


@row
def an_input_as_output() -> Row:
    return Row(lambda x: (x, x.sin()), [(rand(8),)])


@row
def non_contiguous() -> Row:
    return Row(lambda x: x.sin() + 1, [(torch.randn(8, 16).t().requires_grad_(),), (torch.randn(16, 8)[::2],)])


@row
def channels_last() -> Row:
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    return Row(torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), [(image,)])


@row
def zero_dimensional() -> Row:
    return Row(lambda x, y: x.sin() * y, [(rand(), rand(8))])


@row
def empty() -> Row:
    return Row(lambda x: x.sin() + 1, [(rand(0, 16),)])


@row
def complex_numbers() -> Row:
    return Row(lambda x: torch.fft.fft(x).abs() + torch.view_as_real(x * 2j).sum(), [(rand(8),)])


@row
def complex_input() -> Row:
    return Row(lambda x: (x * 2).abs(), [(torch.randn(8, dtype=torch.complex64),)])


@row
def low_precision() -> Row:
    return Row(
        lambda x, y: (x.sin() * 2, y.sin() * 2),
        [(rand(8, dtype=torch.bfloat16), rand(8, dtype=torch.float16))],
        rtol=2e-2,
        atol=2e-2,
    )


@row
def integers() -> Row:
    return Row(lambda x, y: (x * 3 // 2, y & 1, x > 2), [(torch.arange(8), torch.arange(8, dtype=torch.int8))])


@row
def random_numbers() -> Row:
    """Compiled and eager code draw different random numbers. So the row only checks that the backward uses the
    forward's mask.
    """

    def run(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
        x = x.detach().clone().requires_grad_()
        output = function(x)
        (gradient,) = torch.autograd.grad(output.sum(), x)
        torch.testing.assert_close(gradient, (output != 0).float() * 2)
        return []

    return Row(lambda x: F.dropout(x, 0.5), [(rand(64),)], run=run)


@row
def dictionaries_and_lists() -> Row:
    return Row(
        lambda data: {"sum": data["a"] + data["b"][0], "rest": [item.sin() for item in data["b"]]},
        [({"a": rand(8), "b": [rand(8), rand(8)]},)],
    )


@row
def mutated_intermediate() -> Row:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.add_(1)
        return y

    return Row(function, [(rand(8),)])


@row
def views_of_one_tensor_across_a_graph_break() -> Row:
    model = linear(16, 16)

    def function(x: torch.Tensor) -> torch.Tensor:
        left, right = model(x).split(8, 1)
        torch._dynamo.graph_break()
        return left * 2 + right.add(1)

    return Row(function, [(rand(8, 16),)])
