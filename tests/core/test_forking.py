"""Tests that no fork happens while a background thread imports or loads, and that no child of a fork waits for a lock
that its parent holds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support_session import deaf_daemon

from precompiled.client import swapping
from precompiled.client.safe_points import SafePoints
from precompiled.core import forking

pytestmark = [
    pytest.mark.fault("forks"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
TIMEOUT_S = 60.0


def forked(in_child: Callable[[], bool]) -> int:
    """Fork, and return the child's exit status: 0 if ``in_child`` returned true."""
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            status = 0 if in_child() else 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def can_hold() -> bool:
    """Return whether another thread of this process can take the lock."""
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
    # The fork cannot have happened, however long the test waits, because the lock is held.
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
    # The fork happens inside the with-block, so the child leaves the block, too. The child must not release a lock that
    # only its parent holds.
    with forking.held():
        pid = os.fork()
    if pid == 0:
        os._exit(0 if can_hold() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert can_hold()


def test_error_releases_the_lock() -> None:
    with pytest.raises(ZeroDivisionError), forking.held():
        raise ZeroDivisionError
    assert can_hold()


def test_a_child_may_fork_again() -> None:
    assert forked(lambda: forked(can_hold) == 0) == 0


def test_a_fork_waits_until_a_graph_is_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a fork came between the load of a graph and the end of its wait, the child would wait forever for the loaded
    graph.
    """
    serving, go_on, order = threading.Event(), threading.Event(), []
    with deaf_daemon() as here:
        here.call(lambda x: x * 2, torch.ones(2))
        (item,) = here.session.pending._awaited.values()
        root = here.session.store.root
        entry = SimpleNamespace(manifest=SimpleNamespace(compile_s=1.0, guards=""), root=root)
        monkeypatch.setattr(swapping, "load_for_graph", lambda *_: lambda x: (x * 2,))

        def serve_with(function: Any, check: Any) -> None:
            serving.set()
            go_on.wait(TIMEOUT_S)
            order.append("swapped")

        def fork() -> None:
            about_to_fork.set()
            status.append(forked(lambda: here.session.pending.wait(0)))
            order.append("forked")

        monkeypatch.setattr(item.dispatch, "serve_with", serve_with)
        about_to_fork, status = threading.Event(), []
        swapper = threading.Thread(target=here.session.pending._act, args=[item, entry])
        forker = threading.Thread(target=fork)
        swapper.start()
        assert serving.wait(TIMEOUT_S)
        forker.start()
        assert about_to_fork.wait(TIMEOUT_S) and not order
        go_on.set()
        for thread in (swapper, forker):
            thread.join(TIMEOUT_S)
    assert order == ["swapped", "forked"]
    assert status == [0], "the child awaits what its parent has swapped"


def test_swaps_in_a_child_need_no_lock_held_by_the_parents_threads() -> None:
    points = SafePoints()
    point = points.of(forked.__code__)
    taken, go_on = threading.Event(), threading.Event()

    def take() -> None:
        with point._lock:
            taken.set()
            go_on.wait(TIMEOUT_S)

    def swaps() -> bool:
        points.after_fork()
        done: list[str] = []
        point.when_safe(lambda: done.append("swapped"), otherwise=lambda: done.append("awaits"))
        return done == ["swapped"]

    thread = threading.Thread(target=take)
    thread.start()
    assert taken.wait(TIMEOUT_S)
    try:
        assert forked(swaps) == 0
    finally:
        go_on.set()
        thread.join(TIMEOUT_S)
