"""Tests that a killed daemon leaves no worker, and that the next daemon gets the graphs of its clients."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from support_daemon import alive, graph, processes_with, raw_client, running_daemon, wait_until

from precompiled.client.connection import DaemonConnection

pytestmark = pytest.mark.fault("daemon-dies")


def set_autogroup(pid: int, nice: int) -> None:
    path = Path(f"/proc/{pid}/autogroup")
    if not path.exists():
        pytest.skip("THE PRIORITY OF SESSIONS IS NOT TRIED: this kernel has no autogroups (CONFIG_SCHED_AUTOGROUP)")

    def is_set() -> bool:
        try:
            path.write_text(str(nice))
        except BlockingIOError:  # the kernel accepts one change per 0.1 s
            return False
        return True

    wait_until(is_set)


def test_worker_of_low_priority_ends_at_normal_priority_when_its_daemon_is_killed(tmp_path: Path) -> None:
    """On a busy host, the processes of a session with the lowest priority took a minute to die."""
    with running_daemon(tmp_path / "d") as daemon, raw_client(daemon.settings) as client:
        path = tmp_path / "pid"
        client.submit(daemon.submit(waiting=True), graph("outlive", path=str(path)))
        child = int(wait_until(lambda: path.exists() and path.read_text()))
        (worker,) = daemon.status().workers
        os.kill(daemon.pid, signal.SIGSTOP)  # the daemon would end the low priority itself
        set_autogroup(worker.pid, 19)
        daemon.stop(signal.SIGKILL)
        wait_until(lambda: not alive(worker.pid))
        try:
            assert Path(f"/proc/{child}/autogroup").read_text().split()[-1] == "0"
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.integration
def test_killed_daemons_leave_no_worker_and_their_successors_publish_all_graphs(
    tmp_path: Path, tries: Callable[[int, int], int]
) -> None:
    generator = random.Random(8)
    published: list[str] = []

    def note(reply: Any) -> None:
        if getattr(reply, "state", "") == "published":
            published.append(reply.id)

    with running_daemon(tmp_path / "d", workers=2) as daemon:
        connection = DaemonConnection(daemon.settings)
        try:
            for number in range(tries(1, 50)):
                go = tmp_path / f"go{number}"
                messages = [daemon.submit(waiting=bool(index % 2)) for index in range(6)]
                for message in messages:
                    connection.submit(message, graph("wait-for", path=str(go)), note)
                assert connection.flush(30)
                wait_until(lambda: daemon.status().workers)
                time.sleep(generator.uniform(0, 0.3))  # a random moment: workers start, or run
                workers = psutil.Process(daemon.pid).children(recursive=True)
                daemon.stop(signal.SIGKILL)
                psutil.wait_procs(workers, 30)
                assert not [process for process in workers if alive(process.pid)]
                daemon.start()
                go.touch()
                wait_until(lambda wanted={message.id for message in messages}: wanted <= set(published))
                for message in messages:
                    connection.forget(message.id)
                assert sorted(published) == sorted(set(published)), "no graph is published twice to a client"
        finally:
            connection.close()
        assert daemon.stop() == 0
    assert processes_with(str(tmp_path)) == []
