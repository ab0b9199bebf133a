"""Constructs beyond plain models, each a function of one input, compiled under the hook and checked against eager.

Usage: constructs_program.py [NAME ...]. Prints a JSON object: per construct the state, source and reason of each graph.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
import torch.utils.checkpoint

import precompiled

Function = Callable[[torch.Tensor], torch.Tensor]
CONSTRUCTS: dict[str, Function] = {}


def construct(function: Function) -> Function:
    CONSTRUCTS[function.__name__] = function
    return function


torch.manual_seed(0)
linear = torch.nn.Linear(16, 16)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.sin() * factor

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        # Not the true derivative: a stale or derived backward would be seen.
        return gradient * x.cos() * ctx.factor * 2, None


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(x):  # type: ignore[no-untyped-def]
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inputs[0])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * 3


@construct
def activation_checkpoint(x: torch.Tensor) -> torch.Tensor:
    return torch.utils.checkpoint.checkpoint(lambda y: torch.relu(linear(y)).sin(), x, use_reentrant=False)


@construct
def checkpoint_with_dropout(x: torch.Tensor) -> torch.Tensor:
    """Random: its gradient is checked against its own output, by ``check_dropout``."""
    return torch.utils.checkpoint.checkpoint(
        lambda y: torch.nn.functional.dropout(linear(y), 0.5), x, use_reentrant=False
    )


def check_dropout(function: Function, x: torch.Tensor) -> None:
    """The backward must have recomputed with the mask of the forward."""
    x = x.clone().requires_grad_()
    output = function(x)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    mask = (output != 0).float() * 2
    torch.testing.assert_close(gradient, mask @ linear.weight, rtol=1e-3, atol=1e-4)


@construct
def pool_of_any_size(x: torch.Tensor) -> torch.Tensor:
    """Compiled for one size, it holds for that size alone: guards of AOTAutograd's."""
    image = linear(x)[None, None, :, : x.shape[0]]
    return torch.nn.functional.adaptive_avg_pool2d(image, 3)


@construct
def custom_function(x: torch.Tensor) -> torch.Tensor:
    return Scaled.apply(linear(x), 3.0)


@construct
def several_custom_functions(x: torch.Tensor) -> torch.Tensor:
    return Tripled.apply(Scaled.apply(linear(x), 2.0)) + Scaled.apply(x, 1.0)


@construct
def conditional(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (linear(x),))


@construct
def views_of_one_tensor_across_a_graph_break(x: torch.Tensor) -> torch.Tensor:
    left, right = linear(x).split(8, 1)
    torch._dynamo.graph_break()
    return left * 2 + right.add(1)


@construct
def mutation_of_an_intermediate(x: torch.Tensor) -> torch.Tensor:
    y = linear(x).clone()
    y.add_(1)
    return y


@construct
def autocast_inside(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return linear(x).float()


@construct
def complex_numbers(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.fft(linear(x)).abs()


@construct
def channels_last(x: torch.Tensor) -> torch.Tensor:
    image = x.view(1, 1, -1, 16).expand(1, 3, -1, 16).contiguous(memory_format=torch.channels_last)
    return torch.nn.functional.conv2d(image, torch.ones(4, 3, 3, 3)).sum() + linear(x).sum()


@construct
def custom_op(x: torch.Tensor) -> torch.Tensor:
    import user_ops

    return user_ops.scaled_sine(linear(x), 3.0) * 2


@construct
def branch_on_a_size(x: torch.Tensor) -> torch.Tensor:
    y = linear(x)
    return (y * 2 if x.shape[0] > 20 else y).sum(0)


def run(function: Function, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    output = function(x)
    output.float().square().mean().backward()
    found = [output.detach(), x.grad, *(p.grad.clone() for p in linear.parameters() if p.grad is not None)]
    linear.zero_grad(set_to_none=True)
    return [value for value in found if value is not None]


def main() -> None:
    names = sys.argv[1:] or list(CONSTRUCTS)
    if "custom_op" in names:
        import user_ops  # noqa: F401 - Dynamo does not trace imports
    precompiled.enable()
    torch.manual_seed(1)
    sizes = {"branch_on_a_size": [8, 12, 30], "pool_of_any_size": [7, 9, 12, 16]}
    states = {}
    for name in names:
        function = CONSTRUCTS[name]
        compiled = torch.compile(function)
        inputs = [torch.randn(rows, 16) for rows in sizes.get(name, [8])]
        before = len(precompiled.report())
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if name == "autocast_inside" else {"rtol": 1e-3, "atol": 1e-4}
        for _ in range(2):  # before the swap, and after it
            for x in inputs:
                if name == "checkpoint_with_dropout":
                    check_dropout(compiled, x)
                    continue
                for left, right in zip(run(compiled, x), run(function, x), strict=True):
                    torch.testing.assert_close(left, right, **tolerance)
            assert precompiled.wait(300)
        states[name] = [[graph.state, graph.source, graph.reason] for graph in precompiled.report()[before:]]
    compiles = torch._dynamo.utils.counters["aot_autograd"]["total"]
    print(json.dumps({"states": states, "compiles": compiles}), flush=True)


if __name__ == "__main__":
    main()
