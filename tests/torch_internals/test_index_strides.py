"""Tests that strides which are read off an index equal those that torch's function computes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codegen import cpp
from torch.utils._sympy.functions import FloorDiv, ModularIndexing

from precompiled.torch_internals.inductor import cpp_kernels
from precompiled.torch_internals.worker import index_strides

X, Y, Z = (sympy.Symbol(name, integer=True, nonnegative=True) for name in ("x0", "x1", "s0"))
TORCHS = cpp.stride_at_vec_range
symbols = st.sampled_from([X, Y, Z, sympy.Symbol("tmp8", integer=True), sympy.Symbol("indirect0")])
products = st.tuples(st.integers(-5000, 5000), st.lists(symbols, max_size=2)).map(
    lambda pair: functools.reduce(operator.mul, pair[1], sympy.Integer(pair[0]))
)
functions = st.sampled_from(
    [FloorDiv(X, 8), ModularIndexing(X, 1, 8), FloorDiv(Y, 63), ModularIndexing(X + 63 * Y, 63, 2)]
)
indices = st.lists(st.one_of(products, products, products, functions), min_size=1, max_size=5).map(sum)


@settings(max_examples=300, deadline=None)
@given(indices, symbols, st.sampled_from([None, 8, 16]))
def test_stride_equals_torchs(index: sympy.Expr, variable: sympy.Symbol, length: int | None) -> None:
    with index_strides.read_off():
        found = cpp.stride_at_vec_range(index, variable, length)
    expected = TORCHS(index, variable, length)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("index", "stride"),
    [
        (768 * X + Y + 5, 768),
        (X, 1),
        (Y + 5, 0),
        (Z * Y - 3 * X, -3),
        (sympy.Integer(7), 0),
        (Z * X + Y, None),
        (X**2, None),
        (X + X * Y, None),
        (X / 2, None),
        (FloorDiv(X, 8) + X, None),
    ],
)
def test_only_the_stride_of_a_linear_index_is_read_off(index: sympy.Expr, stride: int | None) -> None:
    assert index_strides.linear_stride(index, X) == stride


def test_torchs_function_is_back_after_the_block() -> None:
    with index_strides.read_off():
        assert cpp.stride_at_vec_range is not TORCHS
    assert cpp.stride_at_vec_range is TORCHS


class Sources:
    """Collects the sources of kernels, and builds none: a call of a kernel does nothing."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def kernel(self, argtypes: list[str], source: str) -> Callable[..., None]:
        self.found.append(source)
        return lambda *_: None

    def all_named(self, compiler: AsyncCompile) -> None:
        pass


def test_model_has_the_same_kernels_as_with_torchs_function() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.softmax(torch.nn.functional.layer_norm(x, x.shape[-1:]), -1)
        image = torch.nn.functional.batch_norm(hidden.unflatten(1, (4, 4)), None, None, training=True)
        return torch.nn.functional.avg_pool2d(image, 2).permute(0, 2, 3, 1).contiguous().std(dim=(1, 2)).sum()

    x = torch.randn(2, 16, 32, requires_grad=True)
    sources = []
    for strides in (index_strides.read_off, nullcontext):
        collected = Sources()
        with strides(), cpp_kernels.handled(collected), torch._inductor.utils.fresh_cache():
            torch.compile(model)(x).backward()
        torch.compiler.reset()
        sources.append(collected.found)
    assert sources[0] == sources[1] and len(sources[0]) > 1
