"""Tests of the rule for results of compiled code: rounding is right, other differences are wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from precompiled.torch_internals.eager.comparison import Undecided, difference

EXACT = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 4 - 2


def compare(eager: Any, compiled: Any, exact: Any = None) -> str:
    def reference() -> Any:
        if exact is None:
            raise AssertionError("the reference is not needed")
        return exact

    found = difference("output 0", eager, compiled, reference)
    return "" if found is None else str(found)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_rounding_needs_no_reference(dtype: torch.dtype) -> None:
    eager = EXACT.to(dtype)
    compiled = eager * (1 + 0.75 * torch.finfo(dtype).eps)
    assert not torch.equal(eager, compiled)
    assert compare(eager, compiled) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_reference_decides_a_larger_difference(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(EXACT.shape, generator=generator, dtype=torch.float64) * 0.1
    exact, noisy = EXACT.to(dtype), (EXACT + noise).to(dtype)
    assert compare(noisy, exact, EXACT) == "", "compiled code is better than eager code"
    assert compare(noisy, (EXACT - noise).to(dtype), EXACT) == "", "both are equally wrong"
    assert compare(exact, noisy, EXACT).startswith("output 0 differs from eager code by up to 0.")


def test_one_wrong_element_of_many_is_found() -> None:
    eager = EXACT.float()
    compiled = eager.clone()
    compiled[7] += 0.5
    assert "by up to 0.5." in compare(eager, compiled, EXACT)


def test_message_says_what_differs() -> None:
    ones = torch.ones(2, 3)
    assert compare(ones, ones[:1]) == "output 0 has shape (1, 3) in compiled code, and (2, 3) in eager code"
    assert compare(ones, ones.double()) == "output 0 has dtype float64 in compiled code, and float32 in eager code"
    assert compare(ones, None) == "output 0 is None in compiled code, and a tensor in eager code"
    assert compare(3, 4) == "output 0 is 4 in compiled code, and 3 in eager code"
    assert compare(None, None) == compare(3, 3) == compare(0.5, 0.5 + 1e-9) == ""


def test_nan_in_both_is_right_and_nan_in_compiled_code_is_wrong() -> None:
    eager = EXACT.float()
    holed = eager.clone()
    holed[3] = float("nan")
    assert compare(holed, holed.clone()) == ""
    assert "is infinite or NaN at 1 elements" in compare(eager, holed, EXACT)
    assert compare(holed, eager, EXACT) == "", "eager code lost the value"


def test_overflow_of_eager_code_alone_is_right() -> None:
    exact = EXACT * 40000  # above the largest float16 in some elements
    eager = exact.half()
    assert not eager.isfinite().all()
    assert compare(eager, eager.clone()) == ""
    assert compare(eager, eager.clamp(-65504, 65504), exact) != ""


def test_discrete_results_may_differ_in_one_percent() -> None:
    eager = torch.arange(2000)
    compiled = eager.clone()
    compiled[:20] += 1
    assert compare(eager, compiled) == ""
    compiled[:21] += 1
    assert compare(eager, compiled, eager) == "output 0 differs from eager code in 21 of 2000 elements"
    assert compare(eager, compiled, compiled) == "", "rounding decided eager code's result"
    assert compare(torch.tensor(True), torch.tensor(False), torch.tensor(True)) != ""


@pytest.mark.parametrize("exact", [EXACT * float("nan"), EXACT[:5], None], ids=["nan", "shape", "raises"])
def test_difference_without_a_reference_is_undecided(exact: torch.Tensor | None) -> None:
    def reference() -> torch.Tensor:
        if exact is None:
            raise Undecided
        return exact

    with pytest.raises(Undecided):
        difference("output 0", EXACT.float(), EXACT.float() + 0.1, reference)


def test_float8_is_compared() -> None:
    eager = EXACT.to(torch.float8_e4m3fn)
    assert compare(eager, eager.clone()) == ""
    assert compare(eager, (EXACT * 1.5).to(torch.float8_e4m3fn), EXACT) != ""
