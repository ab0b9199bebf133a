"""Tests of graphs with opaque objects among their inputs.

The client describes such an object by its class. The worker creates an object of the class, without a value.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch._library.fake_class_registry import FakeScriptObject, maybe_to_fake_obj
from torch._library.opaque_object import register_opaque_type
from torch._opaque_base import OpaqueBase

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import input_metadata, opaque_inputs
from precompiled.torch_internals.user_code import user_modules


class Label(OpaqueBase):
    def __init__(self, value: str) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Label) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __fx_repr__(self) -> tuple[str, dict[str, type]]:
        return f"Label({self.value!r})", {"Label": Label}


class Kept(OpaqueBase):
    """An opaque object on whose value Dynamo puts a guard."""


register_opaque_type(Label, typ="value", hoist=True)
register_opaque_type(Kept, typ="reference")


@torch.library.custom_op("precompiled_opaque::labelled", mutates_args=())
def labelled(x: torch.Tensor, label: Label) -> torch.Tensor:
    return x * len(label.value)


@labelled.register_fake
def _(x: torch.Tensor, label: Label) -> torch.Tensor:
    return torch.empty_like(x)


def test_object_is_described_by_its_class_and_made_without_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_modules, "earliest_load", lambda *_: math.inf)
    mode = input_metadata.new_fake_mode()
    modules: dict[str, str] = {}
    names = [opaque_inputs.encode(maybe_to_fake_obj(mode, Label(value)), 0, modules) for value in ("first", "second")]
    assert names[0] == names[1] == [__name__, "Label", modules[__name__]]
    made, other = (opaque_inputs.make(names[0], mode) for _ in range(2))
    assert isinstance(made, FakeScriptObject) and made != other
    with mode:
        assert torch.ops.precompiled_opaque.labelled(torch.empty(3), made).shape == (3,)
    for asked in (lambda: made.value, lambda: made.real_obj.value):
        with pytest.raises(AttributeError):
            asked()


def test_object_with_a_guard_is_refused() -> None:
    value = maybe_to_fake_obj(input_metadata.new_fake_mode(), Kept())
    assert opaque_inputs.is_opaque(value)
    with pytest.raises(Bypass) as refused:
        opaque_inputs.encode(value, 0, {})
    assert refused.value.code == "unsupported-input"
