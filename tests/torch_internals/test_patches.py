"""Tests that a patched function is restored exactly: a class's own, inherited or static function, or one of a
module.
"""

from __future__ import annotations

import types
from typing import Any

import pytest

from precompiled.torch_internals.patches import Patches, in_force


class Base:
    def inherited(self) -> str:
        return "inherited"


class Owner(Base):
    @staticmethod
    def static() -> str:
        return "static"

    def own(self) -> str:
        return "own"


module = types.ModuleType("a_module")
module.function = lambda: "function"  # type: ignore[attr-defined]


def louder(original: Any) -> Any:
    return lambda *arguments: original(*arguments).upper()


def test_each_kind_of_function_is_replaced_and_restored() -> None:
    before = in_force()
    with Patches() as patches:
        for name in ("inherited", "static", "own"):
            patches.replace(Owner, name, louder)
        patches.replace(module, "function", louder)
        found = [Owner().inherited(), Owner().static(), Owner.static(), Owner().own(), module.function()]
        assert found == ["INHERITED", "STATIC", "STATIC", "OWN", "FUNCTION"]
        replaced = [f"{__name__}.Owner.{name}" for name in ("inherited", "own", "static")]
        assert sorted({*in_force()} - {*before}) == sorted(["a_module.function", *replaced])
        assert Base().inherited() == "inherited"
    assert [Owner().inherited(), Owner.static(), Owner().own(), module.function()] == [
        "inherited",
        "static",
        "own",
        "function",
    ]
    assert "inherited" not in vars(Owner) and isinstance(vars(Owner)["static"], staticmethod)
    assert in_force() == before and not patches


def test_two_patches_of_one_function_are_undone_in_reverse() -> None:
    patches = Patches()
    patches.replace(module, "function", louder)
    patches.replace(module, "function", lambda original: lambda: original() + "!")
    assert module.function() == "FUNCTION!"
    assert patches.are_replaced(), "the second patch replaces the first one"
    patches.undo()
    patches.undo()
    assert module.function() == "function"


def test_a_missing_name_is_an_error_and_replaces_nothing() -> None:
    patches = Patches()
    with pytest.raises(AttributeError):
        patches.replace(Owner, "absent", louder)
    assert not patches
