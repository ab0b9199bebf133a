"""Tests of wall clocks that jump by a year, in a running daemon and between processes that share a store."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support_clock import YEAR_S, ShiftedClock
from support_daemon import DaemonUnderTest, RawClient, graph, raw_client
from support_store import KEY, OTHER, failure, payload

from precompiled.store import eviction
from precompiled.store.artifacts import Store

pytestmark = [
    pytest.mark.fault("clocks"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler (cc), to build the library of the clock"),
]

JUMPS = (YEAR_S, -YEAR_S, 0.0, 10 * YEAR_S, -10 * YEAR_S, 3600.0, -3600.0)
SHIFTED = """
import sys, time
from precompiled.store import eviction
from precompiled.store.artifacts import Store
from support_store import KEY, OTHER, failure, payload
store = Store(sys.argv[1])
exec(sys.argv[2])
"""


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedClock:
    return ShiftedClock(tmp_path)


@pytest.fixture
def daemon(clock: ShiftedClock, tmp_path: Path) -> Iterator[DaemonUnderTest]:
    made = DaemonUnderTest(tmp_path / "d", prefix=clock.command)
    try:
        made.start()
        yield made
    finally:
        made.cleanup()


def test_daemon_serves_and_expires_nothing_after_jumps_of_its_clock(
    clock: ShiftedClock, daemon: DaemonUnderTest, tmp_path: Path, tries: Callable[[int, int], int]
) -> None:
    """The clock jumps while a worker is idle, while it compiles, and while a key is quarantined."""
    with raw_client(daemon.settings) as client:
        deadly = daemon.submit()
        client.submit(deadly, graph("die"))
        assert client.ended(deadly.id).code == "key-quarantined"
        idle = served_by(client, daemon)
        process = psutil.Process(daemon.pid)
        for number in range(tries(3, 70)):
            go = tmp_path / f"go{number}"
            waits = daemon.submit()
            client.submit(waits, graph("wait-for", path=str(go)))
            client.receive_until(lambda reply, id=waits.id: getattr(reply, "state", "") == "running" or reply.id != id)
            clock.shift(JUMPS[number % len(JUMPS)])
            assert daemon.status().pid == daemon.pid
            go.touch()
            assert client.ended(waits.id).state == "published"
            assert served_by(client, daemon) == idle, "the jump ended no idle worker"
            again = daemon.submit(deadly.key)
            client.submit(again, graph())
            assert client.ended(again.id).code == "key-quarantined", "the jump ended no quarantine"
        began, used = time.monotonic(), sum(process.cpu_times()[:2])
        process.suspend()  # as when a host is suspended: the clock goes on while nothing runs
        clock.shift(86400.0)
        process.resume()
        assert served_by(client, daemon) == idle
        while time.monotonic() < began + 0.5:
            daemon.status()
            time.sleep(0.1)
        assert sum(process.cpu_times()[:2]) - used < 0.25, "an idle daemon uses the CPU"
        assert daemon.stop(signal.SIGTERM) == 0


def served_by(client: RawClient, daemon: DaemonUnderTest) -> list[int]:
    message = daemon.submit()
    client.submit(message, graph())
    assert client.ended(message.id).state == "published"
    return [worker.pid for worker in daemon.status().workers]


@pytest.mark.parametrize("shift", [YEAR_S, -YEAR_S])
def test_hosts_whose_clocks_differ_by_a_year_share_a_store(clock: ShiftedClock, store: Store, shift: float) -> None:
    def elsewhere(text: str) -> None:
        clock.shift(shift)
        folder = str(Path(__file__).parent.parent / "store")
        subprocess.run(
            [*clock.command, sys.executable, "-c", SHIFTED, str(store.root), text],
            env={**os.environ, "PYTHONPATH": folder},
            check=True,
        )

    assert abs(time.time() - store.publish(payload()).manifest.created) < 3600
    elsewhere(f"assert abs(time.time() - {time.time()} - {shift}) < 3600, 'the clock is shifted'")
    elsewhere("a, = store.lookup(KEY); store.read_files(a); store.touch(a)")
    elsewhere("eviction.evict(store, 1 << 30, 10**6); assert store.lookup(KEY); store.publish(payload(OTHER))")
    assert store.lookup(KEY) and store.lookup(OTHER)
    # A failure record with a time in the future must not keep a graph eager forever. A record of this host stays valid
    # for its ``ttl_s``.
    elsewhere("store.publish_failure(failure(OTHER))")
    assert store.failure(OTHER) is None
    store.publish_failure(failure())
    elsewhere("assert store.failure(KEY) is None")
    assert store.failure(KEY) is not None
    eviction.evict(store, 1 << 30, 10**6)
    assert store.lookup(KEY) and store.lookup(OTHER)
