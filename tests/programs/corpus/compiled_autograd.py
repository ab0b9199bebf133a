"""Rows of the corpus about compiled autograd: hooks, accumulation, sizes, custom Functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from corpus.functions import Doubled
from corpus.rows import ROWS, Row, linear, rand, row


def with_compiled_autograd(make: Callable[[], Row]) -> Callable[[], Row]:
    def enabled() -> Row:
        made = make()
        made.around_compiled = lambda: torch._dynamo.compiled_autograd._enable(torch.compile)
        return made

    ROWS["compiled_autograd_" + make.__name__] = enabled
    return enabled


@with_compiled_autograd
def plain() -> Row:
    return Row(linear(16, 32, 16), [(rand(8, 16),)])


@with_compiled_autograd
def sizes() -> Row:
    return Row(linear(16, 32, 16), [(rand(rows, 16),) for rows in (8, 12, 20)])


@with_compiled_autograd
def custom() -> Row:
    return Row(lambda x: Doubled.apply(x, 3.0, True).sin(), [(rand(8),)])


class Exact(torch.autograd.Function):
    """A product whose backward runs without autocast, as under torch.amp.custom_bwd."""

    @staticmethod
    def forward(ctx, x, weight):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            return gradient.float() @ weight.t(), x.t() @ gradient.float()


@with_compiled_autograd
def autocast_off_inside() -> Row:
    def run(function: Callable[..., Any], x: torch.Tensor, weight: torch.Tensor) -> list[Any]:
        # The forward is eager. With a compiled forward, torch itself would give gradients of a different dtype.
        del function
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = Exact.apply(x, weight).float().square().mean()
            return list(torch.autograd.grad(loss, (x, weight)))

    return Row(Exact.apply, [(rand(64, 64), rand(64, 64))], run=run, rtol=1e-5, atol=1e-5)


@with_compiled_autograd
def accumulation() -> Row:
    model = linear(16, 16)

    def run(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        for _ in range(3):
            function(x).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    return Row(model, [(rand(8, 16, grad=False),)], run=run)


@with_compiled_autograd
def retained_graph() -> Row:
    model = linear(16, 16)

    def run(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        loss = function(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    return Row(model, [(rand(8, 16, grad=False),)], run=run)


@with_compiled_autograd
def hooks() -> Row:
    model = linear(16, 16, 16)

    def run(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        seen: list[torch.Tensor] = []
        parameters = list(model.parameters())
        handles = [
            parameters[0].register_hook(lambda gradient: gradient * 2),
            parameters[1].register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone())),
        ]
        try:
            output = function(x)
            output.register_hook(lambda gradient: gradient + 1)
            output.square().mean().backward()
        finally:
            for handle in handles:
                handle.remove()
        return [*seen, *(p.grad.clone() for p in parameters if p.grad is not None)]

    return Row(model, [(rand(8, 16, grad=False),)], run=run)


@with_compiled_autograd
def module_hooks() -> Row:
    model = linear(16, 16, 16)
    model[1].register_full_backward_hook(lambda module, into, out: (into[0] * 3,))
    return Row(model, [(rand(8, 16),)])


@with_compiled_autograd
def saved_tensor_hooks() -> Row:
    model = linear(16, 16)

    def run(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t / 2):
            output = (function(x).sin() * x).sum()
        output.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    return Row(model, [(rand(8, 16, grad=False),)], run=run)


@row
def compiled_autograd_by_configuration() -> Row:
    """With the setting ``compiled_autograd``, a compiled function may run a backward itself."""
    model = linear(16, 16)

    def step(x: torch.Tensor) -> None:
        model(x).square().mean().backward()

    def run(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        function(x)
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    configured = torch._dynamo.config.patch(compiled_autograd=True)
    return Row(step, [(rand(8, 16, grad=False),)], run=run, around=lambda: configured)
