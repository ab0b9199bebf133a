"""No fork while a background thread imports or loads; and nobody waits for a lock that nobody will release."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest

from precompiled.core import forking

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
TIMEOUT_S = 60.0


def forked(in_child: Callable[[], bool]) -> int:
    """Fork, and the child's exit status: 0 when ``in_child`` returned true."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            status = 0 if in_child() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def can_hold() -> bool:
    """Whether another thread of this process gets the lock."""
    got = threading.Event()

    def take() -> None:
        with forking.held():
            got.set()

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    return got.wait(TIMEOUT_S)


def test_a_fork_waits_for_a_load() -> None:
    loading, go_on, order = threading.Event(), threading.Event(), []

    def load() -> None:
        with forking.held():
            loading.set()
            go_on.wait(TIMEOUT_S)
            order.append("loaded")

    def fork() -> None:
        about_to_fork.set()
        status.append(forked(can_hold))
        order.append("forked")

    about_to_fork, status = threading.Event(), []
    loader, forker = threading.Thread(target=load), threading.Thread(target=fork)
    loader.start()
    assert loading.wait(TIMEOUT_S)
    forker.start()
    assert about_to_fork.wait(TIMEOUT_S)
    # However long it is left alone: the lock is taken, so it cannot have forked.
    assert not order
    go_on.set()
    forker.join(TIMEOUT_S)
    loader.join(TIMEOUT_S)
    assert order == ["loaded", "forked"]
    assert status == [0], "the child cannot take the lock"
    assert can_hold(), "the parent cannot take the lock"


def test_a_thread_may_fork_under_its_own_lock() -> None:
    with forking.held():
        status = forked(can_hold)
    assert status == 0
    assert can_hold()


def test_a_lock_taken_before_the_fork_is_not_released_in_the_child() -> None:
    # The child leaves the parent's with-block: it must not release a lock that it has never taken.
    with forking.held():
        pid = os.fork()
    if pid == 0:
        os._exit(0 if can_hold() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert can_hold()


def test_an_error_releases_it() -> None:
    with pytest.raises(ZeroDivisionError), forking.held():
        raise ZeroDivisionError
    assert can_hold()


def test_a_child_may_fork_again() -> None:
    assert forked(lambda: forked(can_hold) == 0) == 0
