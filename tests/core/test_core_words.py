"""Tests that the hint to install an extra has the same words in all messages, and names only extras that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from precompiled.core import words

ROOT = Path(__file__).parents[2]


def extras() -> set[str]:
    text = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return set(re.findall(r"^([\w-]+) = ", text, re.MULTILINE))


def test_a_hint_for_an_extra_names_the_clone_and_the_index() -> None:
    assert words.install("metrics") == (
        "`pip install '.[metrics]'` in a clone of precompiled (`'torch-precompiled[metrics]'` where an index has it)"
    )


def test_messages_use_the_common_hint_and_existing_extras() -> None:
    code = {path: path.read_text() for path in (ROOT / "precompiled").rglob("*.py")}
    assert [path.name for path, text in code.items() if "precompiled[" in text] == ["words.py"]
    named = {name for text in code.values() for name in re.findall(r"words\.install\([\"']([\w-]+)", text)}
    assert named and named <= extras()


@pytest.mark.parametrize("page", ["guides/farm.md", "guides/remote.md", "guides/seeing.md"])
def test_pages_name_existing_extras(page: str) -> None:
    named = re.findall(r"pip install '\.\[([\w-]+)\]'", (ROOT / "docs" / page).read_text())
    assert named and set(named) <= extras()
