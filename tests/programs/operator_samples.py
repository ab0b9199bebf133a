"""Runs each operator on the CUDA device and on the CPU, with the first of torch's own samples (OpInfo).

Prints a line of JSON: ``equal`` (names), ``refused`` (the reason by name), ``wrong`` (the difference by name).
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

# Operators that return random numbers or uninitialised memory.
DRAWN = (
    "rand",
    "empty",
    "bernoulli",
    "multinomial",
    "normal",
    "dropout",
    "uniform",
    "cauchy",
    "exponential",
    "geometric",
    "rrelu",
    "pca_lowrank",
    "svd_lowrank",
    "fractional_max_pool",
    "lobpcg",
)


def moved(value: Any) -> Any:
    return value.cuda() if isinstance(value, torch.Tensor) else value


def main() -> None:
    equal, refused, wrong = [], {}, {}
    for op in op_db:
        if torch.float32 not in op.dtypes or torch.float32 not in op.dtypesIfCUDA:
            continue
        try:
            sample = next(iter(op.sample_inputs("cpu", torch.float32)))
            expected = op(sample.input, *sample.args, **sample.kwargs)
        except Exception:  # the CPU does not support the sample
            continue
        there = sample.transform(moved)
        try:
            found = op(there.input, *there.args, **there.kwargs)
        except Exception as error:
            refused[op.full_name] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
            continue
        if any(word in op.full_name for word in DRAWN):
            continue
        found = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, found)
        try:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
        except AssertionError as error:
            wrong[op.full_name] = str(error)[:500]
        else:
            equal.append(op.full_name)
    print(json.dumps({"equal": equal, "refused": refused, "wrong": wrong}))


if __name__ == "__main__":
    main()
