"""Tests of the lists of recipes, by which workers compile a program's Triton kernels before the program launches
them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from precompiled.core.errors import UntrustedStore
from precompiled.store import eviction, recipe_lists
from precompiled.store.artifacts import Store
from precompiled.store.recipe_lists import ListedRecipe, RecipeList

PROGRAM, OTHER = "a" * 64, "b" * 64
ITEM = ListedRecipe({"kernel": "added"}, "added", "c" * 64, "3.6.0", False, "cuda:GPU-0", "H100", 0.5)
SECOND = replace(ITEM, recipe={"kernel": "shifted"}, name="shifted")


@pytest.fixture
def listed(tmp_path: Path) -> RecipeList:
    found = RecipeList(tmp_path / "store", PROGRAM)
    found.add(ITEM)
    return found


def test_recipes_are_read_in_the_order_in_which_they_were_added(listed: RecipeList, tmp_path: Path) -> None:
    listed.add(SECOND)
    os.utime(listed._folder / SECOND.file, (0, 0))
    assert listed.read() == [SECOND, ITEM]
    assert RecipeList(tmp_path / "store", OTHER).read() == [] and RecipeList(tmp_path / "none", OTHER).read() == []


def test_later_facts_replace_the_earlier_facts_of_the_same_recipe(listed: RecipeList) -> None:
    later = replace(ITEM, triton="3.7.0", device="cuda:GPU-1", gpu="A100", key="d" * 64)
    listed.add(later)
    assert listed.read() == [later]
    listed.add(replace(ITEM, texts=True))
    assert len(listed.read()) == 2, "a kernel with texts differs from one without"


def test_removed_recipe_is_not_read(listed: RecipeList) -> None:
    listed.remove(ITEM)
    listed.remove(SECOND)
    assert listed.read() == []


def test_recipes_that_other_users_can_write_are_refused(listed: RecipeList) -> None:
    listed._folder.chmod(0o777)
    with pytest.raises(UntrustedStore):
        listed.read()


def test_recipe_of_another_user_is_refused(listed: RecipeList) -> None:
    (listed._folder / ITEM.file).chmod(0o666)
    with pytest.raises(UntrustedStore):
        listed.read()


@pytest.mark.parametrize("text", ["{", "[]", '{"field": 1}'])
def test_damaged_recipe_is_removed_and_the_others_are_read(listed: RecipeList, text: str) -> None:
    listed.add(SECOND)
    (listed._folder / ITEM.file).write_text(text)
    assert listed.read() == [SECOND] and os.listdir(listed._folder) == [SECOND.file]


def test_number_of_recipes_and_programs_is_limited(
    listed: RecipeList, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe_lists, "MAX_RECIPES", 1)
    listed.add(SECOND)
    assert listed.read() == [ITEM]
    monkeypatch.setattr(recipe_lists, "KEPT", 1)
    os.utime(listed._folder, (0, 0))
    RecipeList(tmp_path / "store", OTHER).add(SECOND)
    assert listed.read() == [] and RecipeList(tmp_path / "store", OTHER).read() == [SECOND]


def test_clear_removes_all_recipes(listed: RecipeList, tmp_path: Path) -> None:
    eviction.clear(Store(tmp_path / "store"))
    assert listed.read() == []
