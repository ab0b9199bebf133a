"""Lists the rows: operators and dtypes as in torch's test of Inductor (test/inductor/test_torchinductor_opinfo.py).

Public only by name: torch.testing._internal.common_methods_invocations. Checked on 2.13.0.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from typing import Any

import torch

DTYPES = ("float32", "float64", "float16", "int64", "int32", "bool")

# The results of these operators are uninitialised memory, so only shape, strides and dtype are compared.
UNINITIALISED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")

# operator (with its variant), dtype
Row = tuple[str, str]


@functools.cache
def operators() -> dict[str, Any]:
    """Return OpInfo objects by name. The first call takes some seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db}


def rows(dtypes: tuple[str, ...] = DTYPES) -> list[Row]:
    """Return all operators with each dtype that they support on the CPU, grouped by dtype."""
    return [
        (name, dtype)
        for dtype in dtypes
        for name, op in operators().items()
        if getattr(torch, dtype) in op.supported_dtypes("cpu")
    ]


class Sample:
    """The first sample of an operator, as in torch's test. Inputs of a differentiable operator require gradients."""

    def __init__(self, row: Row) -> None:
        """Raises OpInfo's exception if OpInfo has no sample."""
        op, dtype = operators()[row[0]], getattr(torch, row[1])
        torch.manual_seed(0)
        differentiable = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
        found = next(iter(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=differentiable), 1)))
        self.function = op.get_op()
        self.arguments = (found.input, *found.args)
        self.keywords = dict(found.kwargs)
