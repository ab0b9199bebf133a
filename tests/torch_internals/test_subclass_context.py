"""Tests of tensor subclasses' metadata: a worker recreates an equal value of the same type, or a capture refuses it."""

from __future__ import annotations

import collections
import json
from dataclasses import dataclass
from typing import Any

import pytest
import support_values
import torch
from support_values import Mapping, Parts, PerRow, Settings

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import subclass_context
from precompiled.torch_internals.user_code import user_modules


@dataclass
class Slots:
    __slots__ = ("size",)
    size: int


class Named(list[int]):
    pass


Pair = collections.namedtuple("Pair", "a b")


def settings(**more: Any) -> Settings:
    found = Settings(PerRow(0), Mapping.ASYMMETRIC)
    vars(found).update(more)
    return found


SUPPORTED = [
    None,
    "a",
    1.5,
    torch.float32,
    torch.Size([2]),
    [1, (2, [3])],
    {"a": (1,), 2: None},
    Mapping.ASYMMETRIC,
    Parts.TWO,
    PerRow(),
    [settings(), settings(made=8)],
    (settings(mapping=None),),
]


@pytest.mark.parametrize("value", SUPPORTED, ids=repr)
def test_supported_value_survives_the_round_trip(value: Any) -> None:
    modules: dict[str, str] = {}
    encoded = json.loads(json.dumps(subclass_context.encode(value, modules)))
    made = subclass_context.decode(encoded)
    assert made == value and type(made) is type(value)
    of_classes = any(word in repr(value) for word in ("PerRow", "Mapping", "Parts"))
    assert set(modules) == ({support_values.__name__} if of_classes else set())


def test_each_field_changes_the_encoding() -> None:
    values = [
        settings(),
        settings(made=8),
        settings(sizes=[1]),
        settings(sizes=(1, 2)),
        settings(granularity=PerRow(1)),
        settings(mapping=Mapping.SYMMETRIC),
    ]
    modules: dict[str, str] = {}
    assert len({json.dumps(subclass_context.encode(value, modules)) for value in values}) == len(values)


def test_digest_of_a_module_is_computed_once_per_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph may have hundreds of inputs of one class, and each digest reads the module and all that it imports."""
    computed: list[list[str]] = []
    monkeypatch.setattr(user_modules, "modules_digest", lambda names, code: computed.append(names) or "digest")
    modules: dict[str, str] = {}
    for value in (settings(), settings(), PerRow(0)):
        subclass_context.encode(value, modules)
    assert computed == [[support_values.__name__]] and modules == {support_values.__name__: "digest"}


REFUSED = [Parts.ONE | Parts.TWO, Slots(1), Named([1]), Pair(1, 2), settings(more=1), collections.OrderedDict(), object]


@pytest.mark.parametrize("value", REFUSED, ids=repr)
def test_value_that_would_change_in_the_round_trip_is_refused(value: Any) -> None:
    with pytest.raises(Bypass):
        subclass_context.encode([value], {})


def test_class_that_cannot_be_imported_is_refused() -> None:
    @dataclass
    class Local:
        size: int = 1

    with pytest.raises(Bypass, match="cannot be imported"):
        subclass_context.encode(Local(), {})
