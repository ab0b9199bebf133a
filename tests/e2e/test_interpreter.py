"""Tests the parts of `make interpreter` that do not need a CUDA build of torch.

These parts are the numpy versions of CUDA's functions, and the states of a table's rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import special

from benchmarks.interpreter import libdevice
from benchmarks.interpreter.table import judge

ONE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in (
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atanh",
            "ceil",
            "cos",
            "cosh",
            "erf",
            "erfc",
            "erfinv",
            "exp",
            "exp2",
            "expm1",
            "floor",
            "isinf",
            "isnan",
            "lgamma",
            "log",
            "log10",
            "log1p",
            "log2",
            "rsqrt",
            "signbit",
            "sin",
            "sinh",
            "sqrt",
            "tan",
            "tanh",
            "trunc",
        )
    },
    "erfcx": special.erfcx,
    "fast_tanhf": torch.tanh,
    "nearbyint": torch.round,
    "j0": special.bessel_j0,
    "j1": special.bessel_j1,
    "cyl_bessel_i0": special.i0,
    "cyl_bessel_i1": special.i1,
}
TWO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "fmod": torch.fmod,
    "hypot": torch.hypot,
    "mul_rn": torch.mul,
    "nextafter": torch.nextafter,
    "pow": torch.pow,
}
# The remaining functions. test_remaining_functions_follow_the_c_standard tests them.
OTHERS = {"fma", "ilogb", "ldexp", "llrint"}
# Functions that Inductor's sources use, but that have no numpy version. A kernel with one of them is "not runnable".
WITHOUT = {"y0", "y1", "nextafterf"}

VALUES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -3.7, 0.1, 1e-3, -1e-8, 1e-38, 1e-42, 7.3, 19.9, 24.0, 25.5, 88.0]
VALUES += [-20.0, 1e4, -1e4, 3.4e38, float("inf"), float("-inf"), float("nan")]


def values(name: str, dtype: torch.dtype) -> torch.Tensor:
    # Large arguments are left out for Bessel functions, because torch's Bessel functions (of the Cephes library) lose
    # digits or return NaN for them.
    far = name in ("j0", "j1", "cyl_bessel_i0", "cyl_bessel_i1")
    return torch.tensor([value for value in VALUES if abs(value) < 80 or not far], dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_cuda_functions_in_numpy_equal_torchs(name: str, dtype: torch.dtype) -> None:
    function = ONE.get(name) or TWO[name]
    given = values(name, dtype)
    pairs = torch.cartesian_prod(given, given).unbind(1)
    arguments = [given] if name in ONE else [part.contiguous() for part in pairs]
    # torch computes the expected values in double precision. In single precision, its fmod returns NaN for a subnormal
    # divisor, and its Bessel functions have few digits.
    exact = [value if name == "nextafter" else value.double() for value in arguments]
    expected = function(*exact)
    expected = expected.to(dtype) if expected.is_floating_point() else expected
    found = libdevice.evaluate(name, [value.numpy() for value in arguments], expected.numpy().dtype)
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=3e-6, atol=1e-37, equal_nan=True)


def test_remaining_functions_follow_the_c_standard() -> None:
    exponents = libdevice.evaluate("ilogb", [np.array([1.0, 0.75, 8.0, 0.0, np.inf], np.float32)], np.int32)
    assert exponents.tolist() == [0, -1, 3, -(2**31), 2**31 - 1]
    scaled = libdevice.evaluate("ldexp", [np.array([1.5, -3.0]), np.array([4, -1], np.int32)], np.float64)
    assert scaled.tolist() == [24.0, -1.5]
    assert libdevice.evaluate("llrint", [np.array([2.5, 3.5, -0.5])], np.int64).tolist() == [2, 4, 0]
    # The product has more digits than a float. fma must round only the sum.
    x = np.array([1 + 2**-12], np.float32)
    assert libdevice.evaluate("fma", [x, x, -x * x], np.float32)[0] == np.float32(2.0**-24)


def test_every_function_that_inductor_writes_has_a_reference_or_is_known_to_have_none() -> None:
    folder = Path(torch.__file__).parent / "_inductor"
    sources = [
        folder / "codegen" / "triton.py",
        folder / "codegen" / "common.py",
        folder / "runtime" / "triton_helpers.py",
    ]
    written = {name for source in sources for name in re.findall(r"libdevice\.([a-z]\w*)\(", source.read_text())}
    # The pattern does not find these names, because the sources compose them from parts.
    written |= {"j0", "j1", "y0", "y1", "cyl_bessel_i0", "cyl_bessel_i1", "sqrt"}
    known = libdevice.IN_DOUBLE.keys() | libdevice.IN_OWN_PRECISION.keys()
    assert {"erf", "pow"} <= written
    assert written - known <= WITHOUT
    assert known == {*ONE, *TWO, *OTHERS}
    with pytest.raises(libdevice.NoReference, match="y0"):
        libdevice.evaluate("y0", [np.ones(1)], np.float64)


def kernel(**changes: Any) -> dict[str, Any]:
    return {
        "name": "triton_poi_fused_sin_0",
        "runs": 1,
        "programs": 2,
        "stored": 8,
        "brought": True,
        "error": "",
        **changes,
    }


def answer(*kernels: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "graphs": [["compiled", "hit", "", ""]],
        "kernels": {str(n): kernel for n, kernel in enumerate(kernels)},
        "different": [],
        "error": "",
        "eager_error": "",
        "launches": 0,
        "strangers": [],
        **changes,
    }


@pytest.mark.parametrize(
    ("result", "row", "kernels"),
    [
        (answer(kernel()), "equal", ["equal"]),
        (answer(), "equal", []),
        (answer(kernel(), kernel(runs=0)), "equal", ["equal", "unreached"]),
        (answer(kernel(stored=0)), "equal", ["not runnable"]),
        (answer(kernel(programs=0)), "equal", ["not runnable"]),
        (answer(kernel(), different=["call 0"]), "wrong", ["wrong"]),
        # In the first of these two cases, the kernel was launched on the device. In the second, the code did not come
        # from an artifact.
        (answer(kernel(), launches=1), "launched", ["not runnable"]),
        (answer(kernel(), strangers=["k"]), "launched", ["not runnable"]),
        (answer(kernel(), kernel(runs=0, error="OutsideOfArguments: 3"), error="3"), "wrong", ["wrong", "wrong"]),
        (answer(kernel(), kernel(runs=0, error="NoReference: y0"), error="y0"), "stopped", ["stopped", "not runnable"]),
        (answer(kernel(), graphs=[["bypassed", None, "custom-op", ""]]), "no artifact", ["stopped"]),
        (answer(graphs=[]), "no artifact", []),
        (answer(eager_error="no kernel image"), "no row", []),
    ],
)
def test_kernel_is_equal_only_if_it_ran_and_its_row_is_equal(
    result: dict[str, Any], row: str, kernels: list[str]
) -> None:
    found = judge("corpus a", result)
    assert (found.state, [state for _name, state, _why in found.kernels.values()]) == (row, kernels)
