"""Tests that exactly one daemon serves if many start at once, whatever files an earlier daemon has left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support_daemon import TIMEOUT_S, DaemonUnderTest, alive, processes_with, wait_until

from precompiled import wire
from precompiled.client import start
from precompiled.client.ask import request
from precompiled.client.daemon_link import daemon_reachable

pytestmark = [pytest.mark.fault("start-races"), pytest.mark.timeout(1800)]  # the time is for the full form


Start = Callable[[], int]  # starts a daemon, and returns its pid


def nothing(daemon: DaemonUnderTest, start: Start) -> None:
    del daemon, start


def stale_socket(daemon: DaemonUnderTest, start: Start) -> None:
    del start
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(daemon.runtime_dir / "socket"))


def file_as_socket(daemon: DaemonUnderTest, start: Start) -> None:
    del start
    (daemon.runtime_dir / "socket").write_text("x")


def lock_of_a_reused_pid(daemon: DaemonUnderTest, start: Start) -> None:
    del start
    (daemon.runtime_dir / "lock").write_text(f"{os.getpid()}\n")


def killed(daemon: DaemonUnderTest, start: Start) -> None:
    del daemon
    pid = start()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))


def stopping(daemon: DaemonUnderTest, start: Start) -> None:
    """Stop the daemon by a signal, so that it is still stopping while the others start."""
    del daemon
    os.kill(start(), signal.SIGTERM)


def restarted(daemon: DaemonUnderTest, start: Start) -> None:
    """Stop the daemon by a request, as `precompiled daemon restart` does after an upgrade."""
    start()
    request(daemon.settings, wire.Stop(), TIMEOUT_S)


# `make test` tries the first ones only.
SITUATIONS = [killed, stopping, restarted, nothing, stale_socket, file_as_socket, lock_of_a_reused_pid]


def check_one_owner(prepare: Callable[..., None], outcomes: list[str]) -> None:
    assert set(outcomes) <= {"ready", "already-running"} and outcomes.count("ready") <= 1, (prepare, outcomes)
    if prepare not in (stopping, restarted):  # otherwise all starters may have found the daemon that stops
        assert outcomes.count("ready") == 1, (prepare, outcomes)


def check_stops(daemon: DaemonUnderTest, owner: int) -> None:
    assert (daemon.runtime_dir / "lock").read_text() == f"{owner}\n"
    request(daemon.settings, wire.Stop(), TIMEOUT_S)
    wait_until(lambda: not alive(owner))
    assert not daemon_reachable(daemon.settings) and not (daemon.runtime_dir / "socket").exists()


@pytest.mark.integration
def test_of_daemons_that_start_at_once_exactly_one_serves(tmp_path: Path, tries: Callable[[int, int], int]) -> None:
    """The test starts whole daemons, as clients do."""
    starts = tries(4, 8 * len(SITUATIONS))
    racers = min(starts, 8)
    for number in range(starts // racers):
        prepare = SITUATIONS[number]
        daemon = DaemonUnderTest(tmp_path / f"{number}")
        daemon.runtime_dir.mkdir(mode=0o700)
        try:
            prepare(daemon, lambda daemon=daemon: int(daemon.start()["pid"]))
            racing = [start.Starting(daemon.settings) for _ in range(racers)]
            check_one_owner(prepare, [racer.result(TIMEOUT_S).kind for racer in racing])
            if daemon.process is not None:
                daemon.process.wait(TIMEOUT_S)
            assert start.start_daemon(daemon.settings, TIMEOUT_S).runs
            owner = daemon.status().pid
            wait_until(lambda at=str(daemon.runtime_dir): len(processes_with(at)) == 1, "one daemon is left")
            assert processes_with(str(daemon.runtime_dir)) == [owner]
            check_stops(daemon, owner)
        finally:
            daemon.cleanup()
        shutil.rmtree(daemon.directory)


class Racers:
    """The process of start_racers.py."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def race(self, daemon: DaemonUnderTest, racers: int) -> list[dict[str, Any]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        order = {"arguments": start.arguments(daemon.settings), "racers": racers}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return list(json.loads(self._process.stdout.readline()))

    def running(self) -> list[int]:
        children = psutil.Process(self._process.pid).children()
        return [child.pid for child in children if alive(child.pid)]


@contextlib.contextmanager
def forked_racers() -> Iterator[Racers]:
    process = subprocess.Popen(
        [sys.executable, Path(__file__).parent / "start_racers.py"],
        env={**os.environ, "PRECOMPILED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    racers = Racers(process)
    try:
        yield racers
    finally:
        for pid in racers.running():  # none, unless the test failed
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_of_many_forks_that_become_the_daemon_exactly_one_serves(
    tmp_path: Path, tries: Callable[[int, int], int]
) -> None:
    """The forks run the daemon's own command line, from its arguments to its stop, without the start of an
    interpreter.
    """
    starts = tries(16 * 2, 16 * 500)
    with forked_racers() as racers:
        for number in range(starts // 16):
            prepare = SITUATIONS[number % len(SITUATIONS)]
            daemon = DaemonUnderTest(tmp_path / f"{number}")
            daemon.runtime_dir.mkdir(mode=0o700)
            prepare(daemon, lambda daemon=daemon: int(racers.race(daemon, 1)[0]["pid"]))
            outcomes = [str(report["outcome"]) for report in racers.race(daemon, 16)]
            assert len(outcomes) == 16, "each racer reports"
            check_one_owner(prepare, outcomes)
            if prepare in (stopping, restarted):
                wait_until(lambda daemon=daemon: racers.race(daemon, 1)[0]["outcome"] != "failed")
            owner = daemon.status().pid
            wait_until(lambda owner=owner: racers.running() == [owner], "one daemon is left")
            check_stops(daemon, owner)
            assert racers.running() == []
            shutil.rmtree(daemon.directory)
