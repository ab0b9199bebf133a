"""Tests that a compile that hangs is ended, wherever it hangs, and that the log and the reply name the place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support_daemon import alive, graph, processes_with, raw_client, running_daemon, wait_until

from precompiled import wire

# Maps the place where the worker hangs to a boolean: whether the worker's stack is written. A stopped process is killed
# without a written stack. If a thread blocks the signal, another thread gets it.
HANGS = {"python": True, "gil": True, "stopped": False, "masked": True}


@pytest.mark.fault("hangs")
def test_worker_that_hangs_is_ended_and_its_stack_is_in_the_log_and_in_the_reply(
    tmp_path: Path, tries: Callable[[int, int], int]
) -> None:
    with running_daemon(tmp_path, job_timeout_s=0.3) as daemon, raw_client(daemon.settings) as client:
        written = 0
        for number in range(tries(4, 60)):
            how = list(HANGS)[number % len(HANGS)]
            lowered = number % 5 == 0  # it hangs in the thread that waits for the compilers
            written += HANGS[how]
            message = daemon.submit(waiting=True)
            client.submit(message, graph("hang", how=how, lowered=lowered))
            (worker,) = wait_until(lambda: [w for w in daemon.status().workers if w.job])
            reply = client.ended(message.id)
            assert isinstance(reply, wire.Rejected) and reply.code == "key-quarantined", reply
            assert "longer than 0.3 s" in reply.message
            assert ("in hang_in_user_code" in reply.message) == HANGS[how], (how, lowered, reply.message)
            assert daemon.log().count("in hang_in_user_code") >= written
            wait_until(lambda pid=worker.pid: not alive(pid))
            message = daemon.submit(waiting=True)
            client.submit(message, graph())
            assert client.ended(message.id).state == "published"
        assert daemon.stop() == 0
    assert processes_with(str(tmp_path)) == []
