"""Tests of the states of one graph, with the sequences of events that occur in practice."""

from __future__ import annotations

import pytest

from precompiled.client.swap import MAX_LOADS, Event, Instruction, State, Swap
from precompiled.core.errors import PrecompiledError


def test_a_hit_is_compiled_at_once() -> None:
    swap = Swap()
    assert swap.on(Event.HIT) is None
    assert swap.state is State.COMPILED


def test_miss_runs_eager_and_is_swapped_once_its_artifact_is_loaded() -> None:
    swap = Swap()
    assert swap.on(Event.MISS) is None
    assert swap.on(Event.PUBLISHED) is Instruction.LOAD
    assert swap.state is State.PENDING
    assert swap.on(Event.LOADED) is None
    assert swap.state is State.COMPILED


def test_a_bypassed_graph_is_compiled_in_its_process() -> None:
    swap = Swap()
    assert swap.on(Event.BYPASS) is None
    assert swap.state is State.BYPASSED


def test_failed_compile_ends_in_state_failed() -> None:
    swap = Swap()
    swap.on(Event.MISS)
    assert swap.on(Event.FAILED) is None
    assert swap.state is State.FAILED


def test_a_refused_graph_is_compiled_in_process_at_its_next_call() -> None:
    swap = Swap()
    swap.on(Event.MISS)
    assert swap.on(Event.REFUSED) is Instruction.COMPILE_INLINE_LATER
    assert swap.state is State.BYPASSED


def test_unloadable_artifact_is_resubmitted_a_limited_number_of_times() -> None:
    swap = Swap()
    swap.on(Event.MISS)
    for _ in range(MAX_LOADS - 1):
        swap.on(Event.PUBLISHED)
        assert swap.on(Event.LOAD_FAILED) is Instruction.SUBMIT
        assert swap.state is State.PENDING
    swap.on(Event.PUBLISHED)
    assert swap.on(Event.LOAD_FAILED) is None
    assert swap.on(Event.REFUSED) is Instruction.COMPILE_INLINE_LATER, "no artifact is awaited any more"


def test_later_successful_load_is_swapped_in() -> None:
    swap = Swap()
    swap.on(Event.MISS)
    for event in (Event.PUBLISHED, Event.LOAD_FAILED, Event.PUBLISHED):
        swap.on(event)
    swap.on(Event.LOADED)
    assert swap.state is State.COMPILED


@pytest.mark.reason("swap-transition")
def test_impossible_event_raises_with_the_history() -> None:
    swap = Swap()
    swap.on(Event.MISS)
    with pytest.raises(PrecompiledError) as caught:
        swap.on(Event.HIT)
    assert caught.value.code == "swap-transition"
    assert "eager + miss; pending + hit" in str(caught.value)
    assert swap.state is State.PENDING
