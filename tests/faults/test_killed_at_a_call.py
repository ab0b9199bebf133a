"""Tests that a process that is killed at any system call of a write leaves a store that others can use."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support_calls import KILL, OPERATIONS, FailingCalls


@pytest.mark.fault("killed-at-a-call")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_process_killed_at_any_call_leaves_a_valid_store(
    failing_calls: FailingCalls, operation: str, tries: Callable[[int, int], int], record_property: Callable[..., None]
) -> None:
    every = 1 if tries(0, 1) else 17
    record_property("tried", failing_calls.attempt(operation, KILL, every))


@pytest.mark.fault("killed-at-a-call")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_process_killed_where_another_was_killed_leaves_a_valid_store(
    failing_calls: FailingCalls, operation: str, tries: Callable[[int, int], int]
) -> None:
    """Each try kills two processes, each at a random call. The second process finds what the first one has left."""
    failing_calls.attempt_twice_at_random(operation, KILL, tries(1, 40))
