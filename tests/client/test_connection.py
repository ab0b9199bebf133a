"""Tests of the client's connection across forks, and to a real daemon that is killed, restarted, full, stopped or
absent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from support_daemon import TIMEOUT_S, DaemonUnderTest, alive, graph, running_daemon, wait_until

from precompiled import wire
from precompiled.client import connection as connection_module
from precompiled.client import daemon_link
from precompiled.client.ask import request
from precompiled.client.connection import DaemonConnection, _Submit
from precompiled.client.daemon_link import daemon_reachable
from precompiled.core.errors import DaemonError


class Replies:
    """Collects the replies to a submit."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def __call__(self, reply: Any) -> None:
        self.all.append(reply)

    def published(self) -> bool:
        return any(getattr(reply, "state", "") == "published" for reply in self.all)

    def codes(self) -> list[str]:
        return [reply.code for reply in self.all if isinstance(reply, wire.Rejected)]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonUnderTest]:
    with running_daemon(tmp_path) as running:
        yield running


@pytest.fixture
def connection(daemon: DaemonUnderTest) -> Iterator[DaemonConnection]:
    made = DaemonConnection(daemon.settings)
    yield made
    made.close()


def no_thread() -> bool:
    return not [thread for thread in threading.enumerate() if thread.name == "precompiled-client"]


def test_import_is_cheap() -> None:
    script = (
        "import sys, precompiled.client.connection\n"
        "assert not {'msgspec', 'torch', 'subprocess', 'asyncio'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=TIMEOUT_S)


def test_a_submit_is_accepted_and_published(daemon: DaemonUnderTest, connection: DaemonConnection) -> None:
    replies, message = Replies(), daemon.submit()
    connection.submit(message, graph(), replies)
    assert connection.flush(TIMEOUT_S)
    assert replies.all
    wait_until(replies.published)
    connection.forget(message.id)
    wait_until(no_thread, "the thread ends when nothing is pending")
    connection.submit(daemon.submit(), graph(), replies)
    assert connection.flush(TIMEOUT_S), "and comes back"


@pytest.mark.fault("daemon-dies")
def test_submits_survive_a_killed_daemon(daemon: DaemonUnderTest, connection: DaemonConnection, tmp_path: Path) -> None:
    running, queued = Replies(), Replies()
    go = tmp_path / "go"
    connection.submit(daemon.submit(), graph("wait-for", path=str(go)), running)
    connection.submit(daemon.submit(), graph(), queued)
    assert connection.flush(TIMEOUT_S)
    daemon.stop(signal.SIGKILL)
    daemon.start()
    go.touch()
    wait_until(lambda: running.published() and queued.published())
    assert daemon.stats().submitted == 2


def test_a_submit_without_a_daemon_waits_for_one(tmp_path: Path) -> None:
    daemon = DaemonUnderTest(tmp_path)
    connection, replies = DaemonConnection(daemon.settings), Replies()
    try:
        connection.submit(daemon.submit(), graph(), replies)
        assert not connection.flush(0.2)
        daemon.start()
        wait_until(replies.published)
    finally:
        connection.close()
        daemon.cleanup()


def test_stopped_daemon_is_not_restarted_and_its_successor_gets_submits(
    daemon: DaemonUnderTest, tmp_path: Path
) -> None:
    connection, replies = DaemonConnection(replace(daemon.settings, autostart=True)), Replies()
    try:
        connection.submit(daemon.submit(), graph("wait-for", path=str(tmp_path / "go")), replies)
        assert connection.flush(TIMEOUT_S)
        daemon.stop()
        assert not connection.flush(1.0)
        assert connection.starts == 0 and not daemon_reachable(daemon.settings)
        daemon.start()
        (tmp_path / "go").touch()
        wait_until(replies.published)
        assert replies.codes() == [], "a stop is not reported to the graph"
    finally:
        connection.close()


@pytest.mark.fault("daemon-dies")
def test_killed_daemon_is_restarted_by_a_client_with_autostart(daemon: DaemonUnderTest) -> None:
    settings = replace(daemon.settings, autostart=True)
    connection, replies = DaemonConnection(settings), Replies()
    try:
        connection.submit(daemon.submit(), graph("sleep"), Replies())
        assert connection.flush(TIMEOUT_S)
        daemon.stop(signal.SIGKILL)
        wait_until(lambda: daemon_reachable(settings))
        connection.submit(daemon.submit(), graph(), replies)
        assert connection.flush(TIMEOUT_S)
        assert connection.starts == 1
        pid = request(settings, wire.Stop()).pid
        wait_until(lambda: not alive(pid))
    finally:
        connection.close()


@pytest.mark.integration
def test_busy_submit_is_retried(tmp_path: Path) -> None:
    with running_daemon(tmp_path, max_queue=1) as daemon:
        connection = DaemonConnection(daemon.settings)
        go = tmp_path / "go"
        replies = [Replies() for _ in range(4)]
        try:
            for each in replies:
                connection.submit(daemon.submit(), graph("wait-for", path=str(go)), each)
            wait_until(lambda: any(isinstance(reply, wire.Busy) for each in replies for reply in each.all))
            assert not connection.flush(0.05)
            go.touch()
            wait_until(lambda: all(each.published() for each in replies))
        finally:
            connection.close()


def test_submit_that_becomes_busy_after_acceptance_is_retried(daemon: DaemonUnderTest, tmp_path: Path) -> None:
    """If the queue is full, another user's job may displace an accepted job. The daemon then replies Busy to the
    displaced submit.
    """
    connection, replies, go = DaemonConnection(daemon.settings), Replies(), tmp_path / "go"
    try:
        message = daemon.submit()
        connection.submit(message, graph("wait-for", path=str(go)), replies)
        assert connection.flush(TIMEOUT_S)
        connection._replied(wire.Busy(message.id, message.key, 0.1))
        assert not connection.flush(0.0) and connection.flush(TIMEOUT_S), "it was sent and accepted again"
        go.touch()
        wait_until(replies.published)
    finally:
        connection.close()


def test_graph_above_the_size_limit_is_not_sent(daemon: DaemonUnderTest) -> None:
    connection, replies = DaemonConnection(replace(daemon.settings, max_graph_bytes=10)), Replies()
    try:
        connection.submit(daemon.submit(), b"x" * 11, replies)
        assert connection.flush(TIMEOUT_S), "an end is an answer"
        assert replies.codes() == ["too-large"]
    finally:
        connection.close()


def test_graph_above_the_daemons_limit_is_rejected(tmp_path: Path) -> None:
    with running_daemon(tmp_path, max_graph_bytes=1000) as daemon:
        connection = DaemonConnection(replace(daemon.settings, max_graph_bytes=1 << 30))
        large, small = Replies(), Replies()
        try:
            connection.submit(daemon.submit(), b"x" * (4 << 20), large)
            connection.submit(daemon.submit(), graph(), small)
            wait_until(lambda: large.codes() == ["too-large"])
            wait_until(small.published)
        finally:
            connection.close()


@pytest.mark.fault("program")
def test_counts_of_a_process_that_exits_arrive(daemon: DaemonUnderTest) -> None:
    script = (
        "import sys; from pathlib import Path; from precompiled import wire\n"
        "from precompiled.client.connection import DaemonConnection; from precompiled.core.config import Settings\n"
        "c = DaemonConnection(Settings(runtime_dir=Path(sys.argv[1])))\n"
        "c.tally(wire.Tally(1, hits=2, misses=1, fallbacks={'x': 3}, saved_s=1.5)); assert c.flush(20); c.close()\n"
    )
    subprocess.run([sys.executable, "-c", script, str(daemon.runtime_dir)], check=True, timeout=TIMEOUT_S)
    stats = wait_until(lambda: (found := daemon.stats()).hits == 2 and found)
    assert (stats.misses, stats.fallbacks, stats.saved_s) == (1, {"x": 3}, 1.5)


@pytest.mark.fault("program")
@pytest.mark.parametrize("reachable", [True, False])
def test_process_may_exit_with_an_open_connection(tmp_path: Path, reachable: bool) -> None:
    """A process must not hang at its exit if it has pending graphs and has not closed its connection."""
    script = (
        "import sys; from pathlib import Path; from precompiled import wire\n"
        "from precompiled.client.connection import DaemonConnection; from precompiled.core.config import Settings\n"
        "c = DaemonConnection(Settings(runtime_dir=Path(sys.argv[1]), autostart=False))\n"
        "e = wire.Interpreter('/bin/false', '/', '3', '2', '', {})\n"
        "c.submit(wire.Submit('i', 'k', '/s', e, 'cpu'), b'g', print)\n"
        "c.flush(0.3)\n"
    )
    daemon = DaemonUnderTest(tmp_path)
    try:
        if reachable:
            daemon.start()
        subprocess.run([sys.executable, "-c", script, str(daemon.runtime_dir)], check=True, timeout=TIMEOUT_S)
    finally:
        daemon.cleanup()


@pytest.mark.fault("forks")
def test_parent_and_child_of_a_fork_stay_connected(
    daemon: DaemonUnderTest, connection: DaemonConnection, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    mine = Replies()
    connection.submit(daemon.submit(), graph("wait-for", path=str(go)), mine)
    assert connection.flush(TIMEOUT_S)
    child_message = daemon.submit()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            theirs = Replies()
            connection.submit(child_message, graph(), theirs)
            if connection.flush(TIMEOUT_S):
                connection.close()
                status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == 0
    go.touch()
    wait_until(mine.published)
    wait_until((daemon.store / child_message.key).exists)
    more = Replies()
    connection.submit(daemon.submit(), graph(), more)
    wait_until(more.published)


@pytest.mark.fault("forks")
def test_forks_during_the_threads_work_are_safe(daemon: DaemonUnderTest) -> None:
    """Fork while the connection's thread starts, imports msgspec and sends. Each child must be able to submit."""
    script = (
        "import os, sys, time; from pathlib import Path\n"
        "from precompiled.client.connection import DaemonConnection; from precompiled.core.config import Settings\n"
        "c = DaemonConnection(Settings(runtime_dir=Path(sys.argv[1]), autostart=False))\n"
        "from precompiled import wire\n"
        "e = wire.Interpreter(sys.argv[2], '/', '3', '2', '', {})\n"
        "def submit(n): c.submit(wire.Submit(f'{os.getpid()}-{n}', f'k{os.getpid()}-{n}', sys.argv[3], e, 'cpu'),\n"
        '    b\'{"do": "exists"}\', lambda r: None)\n'
        "submit(0)\n"
        "pids = []\n"
        "for n in range(30):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        submit(1); os._exit(0 if c.flush(20) else 1)\n"
        "    pids.append(pid); time.sleep(0.002)\n"
        "bad = [pid for pid in pids if os.waitpid(pid, 0)[1]]\n"
        "assert not bad, bad\n"
        "assert c.flush(20); c.close()\n"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(daemon.runtime_dir), str(daemon.interpreter), str(daemon.store)],
        check=True,
        timeout=2 * TIMEOUT_S,
    )


def test_time_without_a_daemon_is_measured(daemon: DaemonUnderTest, connection: DaemonConnection) -> None:
    replies = Replies()
    assert connection.alone_s() == 0.0
    connection.submit(daemon.submit(), graph(), replies)
    wait_until(replies.published)
    assert connection.alone_s() == 0.0
    daemon.stop()
    wait_until(lambda: connection.alone_s() > 0.1, "the submit is kept, and no daemon has it")
    daemon.start()
    wait_until(lambda: connection.alone_s() == 0.0)


@pytest.mark.fault("hangs")
def test_hanging_daemon_counts_as_absent(
    daemon: DaemonUnderTest, connection: DaemonConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A suspended daemon keeps its connections open, so only a request without a reply shows that it hangs."""
    monkeypatch.setattr(daemon_link, "ASK_S", 0.2)
    monkeypatch.setattr(daemon_link, "ANSWER_S", 0.2)
    monkeypatch.setattr(connection_module, "RETRY_MAX_S", 0.05)  # how often the thread checks for a silent daemon
    go, replies, held, later = tmp_path / "go", Replies(), Replies(), Replies()
    connection.submit(daemon.submit(), graph("wait-for", path=str(go)), held)
    assert connection.flush(TIMEOUT_S)
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: connection.alone_s() > 0.1, "the graph was accepted, but no daemon works on it")
        connection.submit(daemon.submit(), graph(), replies)
        # The daemon already counts as absent, so the new submit must not start another wait for a reply.
        wait_until(lambda: [submit.state for submit in connection._submits.values()] == ["accepted", "sent"])
        assert connection.alone_s() > 0.1
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    wait_until(lambda: connection.alone_s() == 0.0)
    go.touch()
    for waiting in (held, replies):
        wait_until(waiting.published)
    connection.submit(daemon.submit(), graph(), later)
    wait_until(later.published)
    assert connection.alone_s() == 0.0


def test_reply_handler_that_raises_does_not_affect_others(
    daemon: DaemonUnderTest, connection: DaemonConnection
) -> None:
    def broken(reply: Any) -> None:
        raise RuntimeError("a handler's own error")

    replies = Replies()
    connection.submit(daemon.submit(), graph(), broken)
    connection.submit(daemon.submit(), graph(), replies)
    wait_until(replies.published)


def test_failed_thread_is_restarted(
    daemon: DaemonUnderTest, connection: DaemonConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError("out of descriptors")

    replies = Replies()
    with monkeypatch.context() as patch:
        patch.setattr(connection, "_serve", broken)
        connection.submit(daemon.submit(), graph(), replies)
        wait_until(lambda: connection._thread is None)
    assert not connection.flush(0.0), "it is pending still"
    connection.ensure_running()
    wait_until(replies.published)


def test_restarted_thread_resends_its_submits(
    daemon: DaemonUnderTest, connection: DaemonConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replies = Replies()
    go = tmp_path / "go"
    connection.submit(daemon.submit(), graph("wait-for", path=str(go)), replies)
    assert connection.flush(TIMEOUT_S)

    def broken(*args: Any) -> None:
        raise OSError("out of descriptors")

    with monkeypatch.context() as patch:
        patch.setattr(connection, "_wait", broken)
        connection.tally(wire.Tally(1, hits=1))  # wakes the thread, which then calls the broken ``_wait``
        wait_until(lambda: connection._thread is None)
    connection.ensure_running()
    go.touch()
    wait_until(replies.published)


def test_thread_start_is_retried_at_intervals(
    daemon: DaemonUnderTest, connection: DaemonConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = []

    def refuse(thread: threading.Thread) -> None:
        starts.append(thread)
        raise RuntimeError("can't start new thread")

    replies = Replies()
    connection.ensure_running()
    assert connection._thread is None, "nothing is pending"
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        connection.submit(daemon.submit(), graph(), replies)
        connection.ensure_running()
        connection.ensure_running()
        assert len(starts) == 2
    connection._next_revival = 0.0
    connection.ensure_running()
    wait_until(replies.published)


def test_flush_returns_at_once_if_no_thread_can_start(
    daemon: DaemonUnderTest, connection: DaemonConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Python 3.12, atexit handlers cannot start threads. A flush that waited for a thread would take its whole
    timeout.
    """

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    connection.tally(wire.Tally(1, hits=1))
    assert connection.flush(1e6)
    wait_until(lambda: request(daemon.settings, wire.Stats()).hits == 1)
    connection.submit(daemon.submit(), graph(), Replies())
    assert not connection.flush(1e6), "at once: the test would not end"


def test_rejection_without_an_id_goes_to_the_last_submit_sent(
    daemon: DaemonUnderTest, connection: DaemonConnection, tmp_path: Path
) -> None:
    accepted, unsent = Replies(), Replies()
    connection.submit(daemon.submit(), graph("wait-for", path=str(tmp_path / "go")), accepted)
    assert connection.flush(TIMEOUT_S)
    sent = daemon.submit()
    with connection._changed:  # keeps the connection's thread from sending the submit
        connection._submits[sent.id] = _Submit(sent, b"", unsent, state="sent")
    connection._replied(wire.Rejected("bad-message", "It cannot be read", "Report it"))
    assert accepted.codes() == []
    assert [(reply.code, reply.id) for reply in unsent.all] == [("bad-message", sent.id)]
    (tmp_path / "go").touch()
    wait_until(accepted.published)


@pytest.mark.reason("no-daemon")
def test_request_without_a_daemon_is_an_error(tmp_path: Path) -> None:
    daemon = DaemonUnderTest(tmp_path)
    with pytest.raises(DaemonError) as caught:
        request(daemon.settings, wire.Status())
    assert caught.value.code == "no-daemon" and "precompiled daemon start" in caught.value.action


@pytest.mark.fault("clocks")
@pytest.mark.reason("no-reply")
def test_request_to_a_suspended_daemon_times_out(daemon: DaemonUnderTest) -> None:
    psutil.Process(daemon.pid).suspend()
    try:
        with pytest.raises(DaemonError) as caught:
            request(daemon.settings, wire.Status(), timeout_s=0.3)
        assert caught.value.code == "no-reply"
    finally:
        psutil.Process(daemon.pid).resume()


@pytest.mark.fault("version-skew")
def test_rejection_by_a_daemon_of_another_version_is_understood(tmp_path: Path) -> None:
    """A rejection has the same form in all protocol versions, so a client can report a rejection by any daemon."""
    import zmq

    daemon = DaemonUnderTest(tmp_path)
    daemon.runtime_dir.mkdir()
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.bind(f"ipc://{daemon.runtime_dir}/socket")
    rejected = wire.encode(wire.Rejected("protocol-version", "we speak 99", "restart"))

    def answer(number: int) -> None:
        for _ in range(number):
            router.send_multipart([router.recv_multipart()[0], b"precompiled/99", rejected])

    thread = threading.Thread(target=answer, args=(2,))
    thread.start()
    connection, replies = DaemonConnection(daemon.settings), Replies()
    try:
        with pytest.raises(DaemonError) as caught:
            request(daemon.settings, wire.Status())
        assert caught.value.code == "protocol-version"
        connection.submit(daemon.submit(), graph(), replies)
        wait_until(lambda: replies.codes() == ["protocol-version"])
        assert connection.flush(TIMEOUT_S)
    finally:
        connection.close()
        thread.join(TIMEOUT_S)
        router.close(0)
        context.term()
