"""Rows of the corpus about custom Functions, operators that take functions, and the user's own code."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from corpus import modules
from corpus.rows import Row, called, linear, rand, row


# ---------------------------------------------------------------- custom Functions
class Doubled(torch.autograd.Function):
    """A Function whose backward is not the true derivative. torch's own derivative would give different gradients."""

    @staticmethod
    def forward(ctx, x, factor, flag):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x.sin() * factor if flag else x

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        return gradient * x.cos() * ctx.factor * 2, None, None


class Outer(torch.autograd.Function):
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


@row
def custom_function() -> Row:
    return Row(lambda x: Doubled.apply(x, 3.0, True), [(rand(8),)])


@row
def several_custom_functions() -> Row:
    return Row(lambda x: Outer.apply(Doubled.apply(x, 2.0, True)) + Doubled.apply(x, 1.0, False), [(rand(8),)])


@row
def nested_custom_functions() -> Row:
    return Row(lambda x: Outer.apply(Outer.apply(x).sin()), [(rand(8),)])


# ---------------------------------------------------------------- operators that take functions
@row
def activation_checkpointing() -> Row:
    model = linear(16, 16, 16)
    return Row(lambda x: checkpoint(lambda y: model(y).relu().sin(), x, use_reentrant=False), [(rand(8, 16),)])


@row
def checkpoint_with_dropout() -> Row:
    """The row checks that the backward uses the dropout mask of the forward.

    Compiled and eager code draw different random numbers, so the gradient is compared with the output.
    """
    model = linear(16, 16)

    def run(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
        x = x.detach().clone().requires_grad_()
        output = function(x)
        (gradient,) = torch.autograd.grad(output.sum(), x)
        mask = (output != 0).float() * 2
        torch.testing.assert_close(gradient, mask @ model[0].weight, rtol=1e-3, atol=1e-4)
        return []

    return Row(
        lambda x: checkpoint(lambda y: F.dropout(model(y), 0.5), x, use_reentrant=False), [(rand(8, 16),)], run=run
    )


@row
def selective_checkpointing_by_operators() -> Row:
    model = linear(16, 16, 16)
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    return Row(
        lambda x: checkpoint(lambda y: model(y).relu().sin(), x, use_reentrant=False, context_fn=contexts),
        [(rand(8, 16),)],
    )


@row
def selective_checkpointing_by_policy() -> Row:
    model = linear(16, 16, 16)
    contexts = functools.partial(create_selective_checkpoint_contexts, modules.policy)
    return Row(
        lambda x: checkpoint(lambda y: model(y).relu().sin(), x, use_reentrant=False, context_fn=contexts),
        [(rand(8, 16),)],
    )


@row
def selective_checkpointing_by_contexts() -> Row:
    model = linear(16, 16, 16)
    return Row(
        lambda x: checkpoint(lambda y: model(y).relu().sin(), x, use_reentrant=False, context_fn=modules.contexts),
        [(rand(8, 16),)],
    )


@row
def conditional() -> Row:
    return Row(lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)), [(rand(8),), (rand(8),)])


@row
def while_loop() -> Row:
    from torch._higher_order_ops.while_loop import while_loop as loop

    def function(x: torch.Tensor) -> Any:
        return loop(lambda i, y: i < 5, lambda i, y: (i + 1, y + y.sin()), (torch.tensor(0), x))[1]

    return Row(function, [(rand(8, grad=False),)])


@row
def scan() -> Row:
    from torch._higher_order_ops.scan import scan as operator

    def function(x: torch.Tensor) -> Any:
        return operator(lambda carry, y: (carry + y, (carry * y).sin()), torch.zeros(4), x)

    return Row(function, [(rand(6, 4, grad=False),)])


@row
def associative_scan() -> Row:
    from torch._higher_order_ops.associative_scan import associative_scan as operator

    return Row(lambda x: operator(lambda a, b: a * b, x, 0, combine_mode="generic"), [(rand(6, 4, grad=False),)])


@row
def flex_attention() -> Row:
    from torch.nn.attention.flex_attention import flex_attention as attention

    return Row(
        lambda q, k, v: attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j) * 0.1),
        [tuple(rand(1, 2, 128, 16, grad=False) for _ in range(3))],
    )


@row
def flex_attention_of_several_sizes() -> Row:
    """Graphs with flex attention must not run eager. From the second call on, the sizes are symbols."""
    from torch.nn.attention.flex_attention import flex_attention as attention

    rate = 0.1
    return Row(
        lambda q, k, v: attention(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j) * rate),
        [tuple(rand(1, 2, size, 16, grad=False) for _ in range(3)) for size in (128, 256, 384)],
    )


@row
def nested_compile_region() -> Row:
    block = linear(16, 16)
    region = torch.compiler.nested_compile_region(lambda x: block(x).relu())
    return Row(lambda x: region(region(region(x))), [(rand(8, 16),)])


@row
def nested_compile_region_of_layers() -> Row:
    """A region saves its input for the backward. torch 2.13 and later lose this value in the norm after the layers."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = torch.nn.LayerNorm(32), linear(32, 64), linear(64, 32)

        @torch.compiler.nested_compile_region
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

    return Row(torch.nn.Sequential(Layer(), Layer(), torch.nn.LayerNorm(32), linear(32, 64)), [(rand(2, 16, 32),)])


@row
def regional_compilation() -> Row:
    """Each layer is compiled separately. Because the layers are alike, they share one artifact."""
    model = torch.nn.Sequential(*(linear(16, 16) for _ in range(4)))
    layers = torch.nn.Sequential(*(torch.compile(layer) for layer in model))

    def run(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
        return called(model if function is model else layers, (x,))

    return Row(model, [(rand(8, 16),)], run=run)


# ---------------------------------------------------------------- the user's own code
@row
def custom_op() -> Row:
    return Row(lambda x: modules.scaled_sine(x, 3.0) * 2, [(rand(8),)])


@row
def operator_of_a_library() -> Row:
    return Row(lambda x: torch.ops.corpus_library.shifted(x * 2) + 1, [(rand(8),)])


@row
def reduced_overhead_without_a_gpu() -> Row:
    return Row(lambda x: (x.sin() * 2).sum(-1), [(rand(3, 4),)], compile={"mode": "reduce-overhead"})


@row
def tensor_subclass_of_torch() -> Row:
    return Row(lambda x: (x * 2 + 1).sin(), [(TwoTensor(rand(8, grad=False), rand(8, grad=False)),)])


@row
def parameters_of_a_tensor_subclass() -> Row:
    """torchao's quantized weights are parameters of a tensor subclass. Some of these weights can be trained."""
    model = linear(8, 8, 4)
    for layer, trained in zip((model[0], model[-1]), (False, True), strict=True):
        layer.weight = torch.nn.Parameter(TwoTensor(layer.weight.detach(), layer.weight.detach() * 2), trained)
    return Row(model, [(rand(3, 8),)])


@row
def tensor_subclass_that_says_objects_of_itself() -> Row:
    """The subclass holds an object that describes it, like subclasses of torchao for dynamic quantization."""
    tag = modules.Described("three", modules.Kind.LOUD)
    return Row(lambda x: x * 3 + 1, [(modules.Tagged(rand(8, grad=False), tag),)])


@row
def tensor_subclass_of_a_function() -> Row:
    """The subclass is defined in a function. A worker cannot import such a subclass, so the worker gets its source."""
    factor = 2

    class Raised(torch.Tensor):
        """A tensor that adds ``factor`` to each product."""

        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Any:
            return torch.Tensor._make_wrapper_subclass(
                cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
            )

        def __init__(self, inner: torch.Tensor) -> None:
            self.inner = inner

        def __tensor_flatten__(self) -> tuple[list[str], Any]:
            return ["inner"], None

        @staticmethod
        def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> Any:
            return Raised(inner["inner"])

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            args, kwargs = tree_map_only(Raised, lambda x: x.inner, (args, kwargs or {}))
            found = func(*args, **kwargs)
            return Raised(found + factor if func is torch.ops.aten.mul.Tensor else found)

    def run(function: Callable[..., Any], x: torch.Tensor) -> list[Any]:
        found = function(Raised(x))
        assert type(found) is Raised
        return [found.inner]

    return Row(lambda x: x * 3 + 1, [(rand(8, grad=False),)], run=run)


@row
def tensor_subclass_of_a_module() -> Row:
    return Row(lambda x: x * 3 + 1, [(modules.Tagged(rand(8, grad=False), "three"),)])
