"""Tests that the description of a value (packages/describe/descriptions.py) does not depend on earlier descriptions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from precompiled.packages.describe.descriptions import Descriptions


class Mixin:
    def __getattribute__(self, key: str) -> Any:
        return super().__getattribute__(key)


class Base(Mixin):
    names: ClassVar[dict[str, str]] = {}

    def __getattribute__(self, key: str) -> Any:
        return super().__getattribute__(super().__getattribute__("names").get(key, key))

    @property
    def shown(self) -> str:
        return super().__repr__()

    @classmethod
    def made(cls) -> type:
        return __class__  # type: ignore[name-defined, no-any-return]

    @functools.lru_cache  # noqa: B019
    def known(self) -> str:
        return super().__str__()


class Config(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0


class Borrows:
    """A class that uses a method of another class as its own."""

    shown = Base.shown


THINGS: dict[str, Callable[[Descriptions], Any]] = {
    "a method": lambda of: of.function(Mixin.__getattribute__),
    "a method of the class below": lambda of: of.function(Base.__getattribute__),
    "the class": lambda of: of.a_class(Mixin),
    "the class below": lambda of: of.a_class(Base),
    "the class below that": lambda of: of.a_class(Config),
    "an object": lambda of: of.value(Config()),
    "a property": lambda of: of.function(Base.__dict__["shown"].fget),
    "a class that borrows": lambda of: of.a_class(Borrows),
}


@pytest.mark.parametrize("first", [*itertools.permutations(THINGS, 2), tuple(THINGS), tuple(reversed(THINGS))], ids=str)
def test_description_does_not_depend_on_earlier_descriptions(first: tuple[str, ...]) -> None:
    alone = {name: THINGS[name](Descriptions()) for name in THINGS}
    described = Descriptions()
    assert {name: THINGS[name](described) for name in first} == {name: alone[name] for name in first}
    described.recount()
    assert {name: THINGS[name](described) for name in THINGS} == alone


def test_description_of_an_object_includes_private_slots() -> None:
    class Scale:
        __slots__ = ("__by", "__dict__", "__weakref__")

        def __init__(self, by: float) -> None:
            self.__by = by

    class Named(Scale):
        __slots__ = ("__name",)

        def __init__(self, by: float, name: str) -> None:
            super().__init__(by)
            self.__name = name

    for one, other in (
        (Scale(2.0), Scale(3.0)),
        (Named(2.0, "a"), Named(2.0, "b")),
        (Named(2.0, "a"), Named(3.0, "a")),
    ):
        assert Descriptions().thing(one) == Descriptions().thing(one) != Descriptions().thing(other)


def test_description_of_a_method_includes_the_values_of_its_class() -> None:
    def made(factor: float) -> Callable[..., Any]:
        class Held:
            scale = factor

            def run(self) -> Any:
                return __class__.scale  # type: ignore[name-defined]

        return Held.run

    assert Descriptions().thing(made(2.0)) == Descriptions().thing(made(2.0))
    assert Descriptions().thing(made(2.0)) != Descriptions().thing(made(3.0))
