"""Tests of the schedule of captures, with simulated edits and simulated time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from precompiled.service.watch.plan import DEBOUNCE_S, MAX_KILLS, Plan


def test_edit_is_captured_after_a_pause_in_edits() -> None:
    plan = Plan()
    assert plan.next_wake(0.0) is None and not plan.is_due(100.0)
    assert not plan.edited(10.0)
    assert not plan.edited(10.1)
    assert not plan.is_due(10.1 + DEBOUNCE_S - 0.01)
    assert plan.next_wake(10.1) == pytest.approx(DEBOUNCE_S)
    assert plan.is_due(10.1 + DEBOUNCE_S)
    plan.started()
    assert not plan.is_due(100.0) and plan.next_wake(100.0) is None
    plan.ended()
    assert not plan.is_due(1000.0), "once"


def test_edit_ends_the_running_capture() -> None:
    plan = Plan()
    plan.begin(0.0)
    assert plan.is_due(0.0)
    plan.started()
    assert plan.edited(1.0), "it is obsolete"
    assert not plan.is_due(1.0)
    assert plan.is_due(1.0 + DEBOUNCE_S)


def test_capture_finishes_despite_continuous_saves() -> None:
    plan = Plan()
    now, kills = 0.0, 0
    plan.edited(now)
    for _ in range(MAX_KILLS + 3):
        now += 1.0
        if plan.is_due(now):
            plan.started()
        kills += plan.edited(now)
    assert kills == MAX_KILLS
    assert plan.capturing
    plan.ended()
    assert plan.is_due(now + DEBOUNCE_S), "and the last edit is captured after it"


@given(st.lists(st.tuples(st.sampled_from(["edit", "tick", "end", "unneeded"]), st.floats(0.0, 1.0))))
def test_last_edit_is_captured_after_any_history(history: list[tuple[str, float]]) -> None:
    plan, now, seen, edited, at_start = Plan(), 0.0, 0, 0, 0
    for what, seconds in [*history, *[("tick", 1.0), ("end", 0.0)] * 2]:
        now += seconds
        if what == "edit":
            edited += 1
            plan.edited(now)
        elif what == "end" and plan.capturing:
            plan.ended()
            seen = at_start
        elif what == "unneeded" and plan.is_due(now):
            plan.unneeded()
            seen = edited
        if plan.is_due(now):
            plan.started()
            at_start = edited
    assert seen == edited
    assert plan.due is None and not plan.capturing
