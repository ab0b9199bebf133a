"""Rows of the corpus about Inductor settings that change the kind of generated code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch._inductor.config

from corpus.rows import Row, linear, rand, row


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    with torch._inductor.config.patch(freezing=True), torch.no_grad():
        yield


class ConvolutionAndNorm(torch.nn.Module):
    """Freezing folds the batch norm into the convolution. oneDNN packs the weights of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3, bias=False)
        self.norm = torch.nn.BatchNorm2d(8)
        self.last = torch.nn.Linear(8, 5)
        self.scale = torch.nn.Parameter(torch.randn(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.convolution(x)).relu()
        y: torch.Tensor = self.last(x.mean((2, 3))) * self.scale
        return y


@row
def frozen_linear() -> Row:
    return Row(linear(16, 32, 4), [(rand(8, 16),), (rand(12, 16),)], around=frozen)


@row
def frozen_convolution() -> Row:
    return Row(ConvolutionAndNorm().eval(), [(rand(2, 3, 12, 12),)], around=frozen)


@row
def freezing_by_option() -> Row:
    """The option ``freezing`` has no effect: Dynamo ignores the option and passes weights as inputs."""
    return Row(linear(16, 32, 4), [(rand(8, 16),)], around=torch.no_grad, compile={"options": {"freezing": True}})


@row
def freezing_with_gradients() -> Row:
    patched: Callable[[], Any] = lambda: torch._inductor.config.patch(freezing=True)  # noqa: E731
    return Row(linear(16, 32, 4), [(rand(8, 16),)], around=patched)


@row
def cpp_wrapper() -> Row:
    return Row(linear(16, 32, 4), [(rand(8, 16),)], compile={"options": {"cpp_wrapper": True}})


@row
def cpp_wrapper_of_any_size() -> Row:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return (x * torch.tensor([1.0, 2.0, 3.0])).softmax(0) + x.shape[0], x.shape[0] * 2

    calls = [(rand(rows, 3, grad=False),) for rows in (8, 12)]
    return Row(function, calls, compile={"dynamic": True, "options": {"cpp_wrapper": True}})
