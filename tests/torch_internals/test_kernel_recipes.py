"""Tests of the values in a kernel's recipe. tests/gpu/test_triton_kernels_ahead.py compiles recipes."""

from __future__ import annotations

import json

import pytest

from precompiled.core.errors import Bypass
from precompiled.torch_internals.user_code import kernel_recipes


@pytest.mark.parametrize(
    "value",
    [None, True, 7, 1.5, "*fp32", [["tt.divisibility", 16]], ((0,), "i32"), [((0,), [["tt.divisibility", 16]])]],
    ids=repr,
)
def test_value_keeps_its_text(value: object) -> None:
    """Triton's cache key contains the text of the values, in which lists and tuples differ."""
    decoded = kernel_recipes._decode(json.loads(json.dumps(kernel_recipes._encode(value))))
    assert decoded == value and repr(decoded) == repr(value)


@pytest.mark.parametrize("value", [b"bytes", float("nan"), float("inf"), {"a": 1}], ids=repr)
def test_value_without_a_form_in_json_is_refused(value: object) -> None:
    with pytest.raises(Bypass) as refused:
        kernel_recipes._encode(value)
    assert refused.value.code == "user-kernel"


@pytest.mark.parametrize(
    ("kernel", "needs"),
    [(["kernel_library", "added", "0" * 64], {"kernel_library": "0" * 64})],
)
def test_worker_needs_the_module_of_an_imported_kernel(kernel: list[str], needs: dict[str, str]) -> None:
    assert kernel_recipes.modules_of({"kernel": kernel}) == needs
