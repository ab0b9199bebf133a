"""Tests that `explain` explains every state that an output shows."""

from __future__ import annotations

import re
from typing import get_args, get_type_hints

import pytest
from support_cli import answer, invoke

from precompiled import wire
from precompiled.cli import top_choices
from precompiled.cli.nearest import NOT_SENT
from precompiled.cli.state_words import STATE_WORDS
from precompiled.client.swap import State
from precompiled.core.reasons import read_reasons
from precompiled.packages.function_report import FunctionReport
from precompiled.store import run_records


def named(text: str | None) -> set[str]:
    """The quoted words of a docstring."""
    return set(re.findall(r'"([a-z ]+)"', text or ""))


SHOWN = {
    *(state.value for state in State),
    *run_records.BY_DAEMON,
    *run_records.NOT_SERVED,
    *run_records.NOT_SERVED.values(),
    *top_choices.STATES,
    *get_args(get_type_hints(wire.WorkerStatus)["state"]),
    *named(FunctionReport.__doc__),
    *named(wire.WatchedGraph.__doc__),
    *named(wire.WatchStatus.__doc__),
    "inline",
    "artifact",
    NOT_SENT,
    *("ok", "failing", "rests", "unusable", "unused"),
} - {"not run, an error"}  # a sentence in runs, with the reason beside it


@pytest.mark.parametrize("state", sorted(SHOWN))
def test_a_state_that_an_output_shows_is_explained(state: str) -> None:
    shown = invoke("explain", state)
    word = STATE_WORDS[state.removeprefix("compiled ")]
    assert shown.exit_code == 0 and word.meaning in shown.output
    if word.state not in read_reasons():
        assert shown.output.startswith(f"{word.state}: ") and answer("explain", state) == word._asdict()


def test_a_word_that_is_a_code_and_a_state_is_explained_as_both() -> None:
    both = STATE_WORDS.keys() & read_reasons().keys()
    assert both
    for word in both:
        text = invoke("explain", word).output
        assert read_reasons()[word].meaning[:20] in text and f"As a state: {STATE_WORDS[word].meaning}" in text


def test_a_state_is_no_beginning_of_a_key() -> None:
    assert not [word for word in STATE_WORDS if re.fullmatch("[0-9a-f]+", word)]


def test_a_similar_word_is_suggested() -> None:
    error = answer("explain", "bypased", status=1)["error"]
    assert error["code"] == "no-such-function" and "Did you mean 'bypassed'?" in error["action"]
