"""Tests that a system call that fails raises an error with a message, and damages nothing in the store."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from support_calls import OPERATIONS, FailingCalls

ERRORS = ("ENOSPC", "EIO", "EROFS", "EDQUOT", "EMFILE", "ENFILE", "EINTR", "EACCES")
STAY = ("ENOSPC", "EROFS")  # errors of all later calls, too


@pytest.mark.fault("failing-calls")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_failing_call_raises_an_error_and_damages_nothing(
    failing_calls: FailingCalls, operation: str, tries: Callable[[int, int], int], record_property: Callable[..., None]
) -> None:
    """The full form provokes each error at each call."""
    number = OPERATIONS.index(operation)
    is_full = tries(1, len(ERRORS)) > 1
    errors = ERRORS if is_full else (ERRORS[number % len(ERRORS)],)
    tried = sum(failing_calls.attempt(operation, getattr(errno, name), 1 if is_full else 23) for name in errors)
    for name in STAY if is_full else (STAY[number % 2],):
        tried += failing_calls.attempt(operation, getattr(errno, name), 1 if is_full else 41, to_the_end=True)
    record_property("tried", tried)
