"""Tests that a graph goes back to eager code if its artifact turns out to be slower, also in later processes."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support_host import TIMEOUT_S, Host
from support_wrong_artifacts import take_slow_or_crashing

from precompiled import wire
from precompiled.client import ask

PROGRAM = str(Path(__file__).parent.parent / "programs" / "slower_program.py")
STEPS = 20  # the slower code must be gone after this many steps

pytestmark = pytest.mark.integration


@contextmanager
def deaf_daemon(host: Host) -> Iterator[None]:
    """Accept clients and never reply, so that only the test publishes artifacts."""
    with socket.socket(socket.AF_UNIX) as listening:
        (host.runtime_dir / "socket").unlink(missing_ok=True)
        listening.bind(str(host.runtime_dir / "socket"))
        listening.listen(10)
        yield
    (host.runtime_dir / "socket").unlink()


@pytest.mark.reason("slower-than-eager")
def test_slower_artifact_is_dropped_and_not_used_by_later_processes(host: Host) -> None:
    host.start_daemon()
    first = host.program(PROGRAM).result()
    assert first["state"] == "compiled"
    daemon = psutil.Process(host.status().pid)
    ask.request(host.settings, wire.Stop(), TIMEOUT_S)
    daemon.wait(TIMEOUT_S)
    slow = take_slow_or_crashing(host.store, "__import__('time').sleep(2)")

    lines = {"PRECOMPILED_PROGRESS": "always"}
    with deaf_daemon(host):
        program = host.program(PROGRAM, env=lines)
        program.wait_for("called")
        host.store.publish(slow)
        found = program.result()
    ways = found["ways"]
    assert (found["state"], found["reason"]) == ("failed", "slower-than-eager")
    assert "compiled" in ways[:STEPS] and set(ways[STEPS:]) == {"eager"}
    assert "slower than eager code" in found["message"]
    assert any("1 graph went back to eager: compiled code was slower (" in line for line in program.errors)

    host.start_daemon()
    program = host.program(PROGRAM, env=lines)
    again = program.result()
    said = "precompiled: 1 graph stays eager (slower-than-eager); `precompiled explain` shows the times"
    assert program.errors == [said]
    assert (again["state"], again["reason"], set(again["ways"])) == ("failed", "slower-than-eager", {"eager"})
    assert host.stats().compiled == 1, "a daemon keeps the counts of the earlier one"

    # In mode "wait", the program gets compiled code although it is slower.
    waiting = host.program(PROGRAM, env={"PRECOMPILED_MODE": "wait"}).result()
    assert waiting["state"] == "compiled" and set(waiting["ways"]) == {"compiled"}

    # After the failure record expires, the artifact serves the graph again.
    (failure,) = host.store.failures()
    host.store.publish_failure(dataclasses.replace(failure, created=failure.created - 2 * failure.ttl_s))
    assert host.program(PROGRAM).result()["state"] == "compiled"
