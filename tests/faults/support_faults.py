"""Support: what must hold after every fault.

- The daemon serves a new client (``assert_serves``).
- The store holds only what was published (``assert_sound``), and nothing of it is partial.
- No process, descriptor, thread or file is left (``nothing_left``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
from support_daemon import DaemonUnderTest, graph, processes_with, raw_client, wait_until

from precompiled import wire
from precompiled.store.artifacts import Store

# Seconds in which a daemon must serve a new client. On an idle machine it takes milliseconds; the tests of `make test`
# run beside others.
SERVED_S = 2.0 if os.environ.get("PRECOMPILED_TESTS_FAULTS") == "full" else 20.0


def assert_serves(daemon: DaemonUnderTest) -> None:
    """A new client gets the daemon's state within ``SERVED_S`` seconds, and a job of it is published."""
    with raw_client(daemon.settings) as client:
        before = time.monotonic()
        client.send(wire.PREAMBLE, wire.encode(wire.Status()))
        client.receive_until(lambda reply: isinstance(reply, wire.StatusReply))
        assert time.monotonic() - before < SERVED_S
        message = daemon.submit()
        client.submit(message, graph())
        assert getattr(client.ended(message.id), "state", "") == "published"


def assert_sound(store: Store, published: Mapping[str, Mapping[str, bytes]]) -> None:
    """Each artifact of the store has exactly the files of ``published`` (by key), and nothing is in quarantine."""
    for key, files in published.items():
        for artifact in store.lookup(key):
            assert store.read_files(artifact) == files, key
    quarantined = os.listdir(store.quarantined) if store.quarantined.exists() else []
    assert quarantined == [], quarantined


@contextmanager
def nothing_left(daemon: DaemonUnderTest) -> Iterator[None]:
    """Check that the daemon has as many descriptors, threads and children after the block as before it."""
    process = psutil.Process(daemon.pid)
    before = _held(process)
    yield
    wait_until(
        lambda: all(now <= then for now, then in zip(_held(process), before, strict=True)), f"more than {before}"
    )


def _held(process: psutil.Process) -> tuple[int, int, int]:
    return process.num_fds(), process.num_threads(), len(process.children(recursive=True))


def files_below(*folders: Path) -> set[Path]:
    """The files below ``folders``, for a comparison before and after a fault."""
    return {path for folder in folders for path in folder.rglob("*") if not path.is_dir()}


def processes_of(daemon: DaemonUnderTest) -> list[int]:
    """The pids of the daemon's processes, its workers and their children, by the mark in their environment."""
    return processes_with(str(daemon.directory))
