"""Tests of the state machine of a graph: every pair of state and event, and arbitrary sequences of events."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precompiled.client.swap import _FINAL, _TABLE, MAX_LOADS, Event, Instruction, State, Swap
from precompiled.core.errors import PrecompiledError

PATHS = {
    State.EAGER: [],
    State.PENDING: [Event.MISS],
    State.COMPILED: [Event.HIT],
    State.FAILED: [Event.MISS, Event.FAILED],
    State.BYPASSED: [Event.BYPASS],
}


def in_state(state: State) -> Swap:
    swap = Swap()
    for event in PATHS[state]:
        swap.on(event)
    assert swap.state is state
    return swap


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)), ids=lambda item: item.value)
def test_every_state_with_every_event(state: State, event: Event) -> None:
    """A pair of state and event is a transition of the table, or is ignored because the state is final. Any other pair
    of state and event raises an error and leaves the state unchanged.
    """
    swap = in_state(state)
    if state in _FINAL:
        assert swap.on(event) is None
        assert swap.state is state
    elif (state, event) in _TABLE:
        after, instruction = _TABLE[state, event]
        assert swap.on(event) is instruction
        assert swap.state is after
    else:
        with pytest.raises(PrecompiledError):
            swap.on(event)
        assert swap.state is state


def test_table_has_no_transition_out_of_a_final_state() -> None:
    assert {state for state, _ in _TABLE} == {State.EAGER, State.PENDING}


def test_table_uses_every_event_and_reaches_every_state() -> None:
    assert {event for _, event in _TABLE} == set(Event)
    assert {State.EAGER} | {after for after, _ in _TABLE.values()} == set(State)


def test_table_gives_every_instruction() -> None:
    assert {instruction for _, instruction in _TABLE.values()} == {None, *Instruction}


def test_failed_load_of_an_eager_graph_is_an_error_each_time() -> None:
    swap = in_state(State.EAGER)
    for _ in range(MAX_LOADS):
        with pytest.raises(PrecompiledError):
            swap.on(Event.LOAD_FAILED)
    assert swap.state is State.EAGER


@given(st.lists(st.sampled_from(list(Event)), max_size=12))
def test_invariants_hold_after_any_history(events: list[Event]) -> None:
    swap, instructions = Swap(), []
    for event in events:
        before = swap.state
        if (before, event) == (State.EAGER, Event.LOAD_FAILED):
            continue  # always raises, as test_failed_load_of_an_eager_graph_is_an_error_each_time checks
        try:
            instruction = swap.on(event)
        except PrecompiledError:
            assert swap.state is before
            continue
        instructions.append(instruction)
        if before in _FINAL:
            assert swap.state is before
            assert instruction is None
        if instruction is not None:
            assert before is State.PENDING
    assert instructions.count(Instruction.SUBMIT) < MAX_LOADS
    assert instructions.count(Instruction.COMPILE_INLINE_LATER) <= 1


@given(st.lists(st.sampled_from(list(Event)), max_size=12), st.sampled_from(list(Event)))
def test_equal_histories_lead_to_equal_states(events: list[Event], last: Event) -> None:
    def play() -> tuple[State, object]:
        swap = Swap()
        outcome: object = None
        for event in [*events, last]:
            try:
                outcome = swap.on(event)
            except PrecompiledError as error:
                outcome = error.code
        return swap.state, outcome

    assert play() == play()
