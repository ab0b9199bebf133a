"""Tests that of many daemons that start at once, exactly one serves, whatever an earlier daemon has left."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support_daemon import TIMEOUT_S, DaemonUnderTest, processes_with, wait_until

from precompiled import wire
from precompiled.client import start
from precompiled.client.ask import request
from precompiled.client.daemon_link import daemon_reachable

pytestmark = pytest.mark.fault("start-races")


def stale_socket(daemon: DaemonUnderTest) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(daemon.runtime_dir / "socket"))


def file_as_socket(daemon: DaemonUnderTest) -> None:
    (daemon.runtime_dir / "socket").write_text("x")


def lock_of_a_reused_pid(daemon: DaemonUnderTest) -> None:
    (daemon.runtime_dir / "lock").write_text(f"{os.getpid()}\n")


def killed(daemon: DaemonUnderTest) -> None:
    daemon.start()
    daemon.stop(signal.SIGKILL)


def stopping(daemon: DaemonUnderTest) -> None:
    """Stop the daemon by a signal, so that it is still stopping while the others start."""
    daemon.start()
    os.kill(daemon.pid, signal.SIGTERM)


def restarted(daemon: DaemonUnderTest) -> None:
    """Stop the daemon by a request, as `precompiled daemon restart` does after an upgrade."""
    daemon.start()
    request(daemon.settings, wire.Stop(), TIMEOUT_S)


SITUATIONS: list[Callable[[DaemonUnderTest], None]] = [
    lambda daemon: None,
    stale_socket,
    file_as_socket,
    lock_of_a_reused_pid,
    killed,
    stopping,
    restarted,
]


def test_of_daemons_that_start_at_once_exactly_one_serves(tmp_path: Path, tries: Callable[[int, int], int]) -> None:
    starts = tries(4, 16 * 14)
    racers = min(starts, 16)
    for number in range(starts // racers):
        # The everyday run tries the hardest situation.
        prepare = SITUATIONS[number % len(SITUATIONS)] if starts > racers else killed
        daemon = DaemonUnderTest(tmp_path / f"{number}")
        daemon.runtime_dir.mkdir(mode=0o700)
        try:
            prepare(daemon)
            racing = [start.Starting(daemon.settings) for _ in range(racers)]
            kinds = [racer.result(TIMEOUT_S).kind for racer in racing]
            assert set(kinds) <= {"ready", "already-running"} and kinds.count("ready") <= 1, (prepare, kinds)
            if prepare not in (stopping, restarted):  # otherwise all starters may have found the daemon that stops
                assert kinds.count("ready") == 1, (prepare, kinds)
            if daemon.process is not None:
                daemon.process.wait(TIMEOUT_S)
            assert start.start_daemon(daemon.settings, TIMEOUT_S).runs
            owner = daemon.status().pid
            wait_until(lambda at=str(daemon.runtime_dir): len(processes_with(at)) == 1, "one daemon is left")
            assert processes_with(str(daemon.runtime_dir)) == [owner]
            assert (daemon.runtime_dir / "lock").read_text() == f"{owner}\n"
            request(daemon.settings, wire.Stop(), TIMEOUT_S)
            wait_until(lambda pid=owner: not psutil.pid_exists(pid))
            assert not daemon_reachable(daemon.settings) and not (daemon.runtime_dir / "socket").exists()
        finally:
            daemon.cleanup()
        shutil.rmtree(daemon.directory)
