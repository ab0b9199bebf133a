"""Tests that peers cannot make the daemon's memory grow without end: each table has a limit.

The tests set small limits, cause many more different entries, and then look at all tables that the daemon reaches.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from precompiled.service import cooldowns, flights, job_states, log_lines, metrics, pool, watcher_link
from precompiled.service import daemon as daemon_module
from precompiled.service.daemon import Daemon
from precompiled.service.events import Asked, RunJob, StartWorker, WorkerGone, WorkerReady
from precompiled.service.worker_process import StartError
from support_daemon import raw_client
from support_scheduler import Host, interpreter

from precompiled import wire
from precompiled.core import children
from precompiled.core.config import Settings

pytestmark = pytest.mark.fault("frames")

LIMIT = 10  # of each table
MOST = 100  # the size of the largest table that the daemon has without any peer, rounded up
TRIES = 300  # entries that a table without a limit would have


def tables(value: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[int, str]]:
    """Yield the size and the path of each container below an object of the daemon."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        yield len(value), path
        for key, item in value.items():
            yield from tables(key, f"{path}.keys", seen)
            yield from tables(item, f"{path}[]", seen)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield len(value), path
        for item in value:
            yield from tables(item, f"{path}[]", seen)
    elif type(value).__module__.startswith("precompiled.") and not isinstance(value, type):
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        fields = value.__struct_fields__ if isinstance(value, msgspec.Struct) else getattr(value, "__dict__", ())
        for name in [*fields, *slots]:
            yield from tables(getattr(value, name, None), f"{path}.{name}", seen)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (cooldowns, "MAX_COOLDOWNS"),
        (flights, "MAX_INTERESTED"),
        (job_states, "MAX_STEPS"),
        (log_lines, "MAX_USERS"),
        (metrics, "MAX_REASONS"),
        (metrics, "MAX_USERS"),
        (watcher_link, "MAX_ASKED"),
    ):
        monkeypatch.setattr(module, name, LIMIT)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon in this process. Its workers do not start. The daemon's watcher reads nothing, and exits at the stream's
    end.
    """

    def start_worker(*_: object, **__: object) -> object:
        raise StartError("no worker starts")

    def start_watcher(*_: str, **options: Any) -> object:
        waits = "import select, sys; poll = select.poll(); poll.register(int(sys.argv[-1]), 0); poll.poll()"
        return children.start_with_stream("-c", waits, **options)

    monkeypatch.setattr(pool, "start_worker", start_worker)
    monkeypatch.setattr(watcher_link, "start_with_stream", start_watcher)
    monkeypatch.setattr(daemon_module, "become_subreaper", lambda: True)
    monkeypatch.setattr(Daemon, "_watch_signals", lambda self: setattr(self, "_wake", os.pipe()))
    settings = Settings(runtime_dir=tmp_path / "r", cache_dir=tmp_path / "s", max_queue=LIMIT, max_queue_per_uid=LIMIT)
    found = Daemon(settings)
    found.open()
    yield found
    found.close()


def messages(number: int) -> Iterator[list[bytes]]:
    """Yield messages of each kind. All texts in the messages contain this number."""
    text = f"x{number}"
    environment = interpreter(text)
    registration = wire.Registration("entry", [f"{text}:f"], sys.executable, "/", "/store", {})
    for message in (
        wire.Submit(text, text, f"/{text}", environment, "cpu"),
        wire.Submit(f"{text}-again", "same", "/store", environment, f"cuda:GPU-{text}"),
        wire.Expect(interpreter(f"{text}-expected"), "cpu"),
        wire.Tally(1, **{name: {text: 1} for name in metrics.BY_REASON if name in wire.Tally.__struct_fields__}),
        wire.Watch(registration),
        wire.Unwatch([text]),
        wire.Watches(),
        wire.Status(),
        wire.GiveUp([text]),
        wire.Retry([text]),
    ):
        yield [wire.PREAMBLE, wire.encode(message), *([b"graph"] if isinstance(message, wire.Submit) else [])]
    yield [text.encode()]
    yield [wire.PREAMBLE, text.encode()]


def test_messages_do_not_grow_a_table_without_end(daemon: Daemon) -> None:
    settings = daemon._settings
    replies: set[str] = set()
    for first in range(0, TRIES, 50):
        with raw_client(settings) as client:
            for number in range(first, first + 50):
                for frames in messages(number):
                    client.send(*frames)
            client.send(wire.PREAMBLE, wire.encode(wire.Stats()))
            while "StatsReply" not in replies:
                daemon._round(0.01)
                while client.socket.poll(0):
                    reply = client.receive()
                    replies.add(getattr(reply, "code", type(reply).__name__))
        replies.remove("StatsReply")
    assert {"worker-cannot-start", "bad-message", "watcher-busy", "Changed", "StatusReply"} <= replies
    size, path = max(tables(daemon))
    assert size < MOST, path


def test_events_do_not_grow_a_table_of_the_scheduler_without_end() -> None:
    host = Host(max_queue=LIMIT, max_queue_per_uid=LIMIT, processes=4, slots=4)
    start = host.only(StartWorker, host.submit("parked", env="parks"))
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    for number in range(TRIES):
        host.submit("parked", env="parks")  # a further client of the same job
        host.done(run, "parked", again_s=0.1)
        host.now += 1.0
        run = host.only(RunJob, host.submit("parked", env="parks"))
        (failed,) = [item for item in host.submit(f"k{number}", env=f"e{number}") if isinstance(item, StartWorker)]
        host.tell(WorkerGone(failed.worker, "died"))
        host.tell(Asked(b"client", None, wire.GiveUp([f"k{number}"])))
        for item in [item for item in host.said if isinstance(item, StartWorker) and item.worker > failed.worker]:
            host.tell(WorkerGone(item.worker, "died"))
        host.said.clear()
    size, path = max(tables(host.scheduler))
    assert size < MOST, path
