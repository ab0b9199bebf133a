"""Finds the stride of a loop variable in an index expression without sympy's general simplifier.

For each kernel, Inductor's C++ backend asks by how much each index grows with each loop variable (stride_at_vec_range).
Its answer comes from ``sympy.simplify``, which takes a third of the time in which a layer of a GPT-2 is lowered. But
most indices are sums of loop variables times constants, like ``768*x0 + x1 + 5``, whose strides can be read off. All
other indices go to torch's function, so all strides, and therefore the kernels, equal torch's.

Private names: torch._inductor.codegen.cpp.stride_at_vec_range. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sympy
from torch._inductor.codegen import cpp

from precompiled.torch_internals.patches import Patches


@contextmanager
def read_off() -> Iterator[None]:
    """Read strides off where possible, in compiles within this block."""
    with Patches() as patches:
        patches.replace(cpp, "stride_at_vec_range", lambda original: functools.partial(_stride, original))
        yield


def _stride(
    original: Callable[..., sympy.Expr], index: sympy.Expr, variable: sympy.Symbol, vector_length: int | None = None
) -> sympy.Expr:
    found = linear_stride(index, variable)
    return original(index, variable, vector_length) if found is None else found


def linear_stride(index: Any, variable: sympy.Symbol) -> sympy.Integer | None:
    """The constant by which ``index`` grows when ``variable`` grows by one. None unless ``index`` is a sum of products
    of integers and symbols, with ``variable`` in at most one product, times an integer.
    """
    stride: sympy.Integer = sympy.S.Zero
    for term in index.args if index.is_Add else (index,):
        factors = term.args if term.is_Mul else (term,)
        if not all(factor.is_Integer or factor.is_Symbol for factor in factors):
            return None
        if variable in factors:
            constant, rest = term.as_coeff_Mul()
            if rest != variable or not constant.is_Integer or stride:
                return None
            stride = constant
    return stride
