"""Tests that killed workers are replaced and cost no job, no matter how and when they are killed."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support_daemon import DaemonUnderTest, alive, graph, processes_with, raw_client, running_daemon, wait_until

from precompiled import wire

PHASES = ("begun", "thread", "compiler", "fork", "writing", "published", "replying", "replied")
ENDS = ("SIGKILL", "SIGSEGV", "SIGABRT", "_exit")
SLOTS = 4
pytestmark = pytest.mark.timeout(1800)  # for the full form


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    with running_daemon(tmp_path_factory.mktemp("d"), workers=SLOTS, job_timeout_s=60) as running:
        yield running


@pytest.fixture(autouse=True)
def serves_and_leaves_nothing(daemon: DaemonUnderTest) -> Iterator[None]:
    """Check after every test that the same daemon compiles, and that no processes are left except the daemon's own."""
    yield
    assert getattr(compiled(daemon), "state", "") == "published"
    assert daemon.status().pid == daemon.pid and daemon.status().queue_depth == 0
    wait_until(lambda: set(processes_with(str(daemon.directory))) <= family(daemon.pid), "no process is left")


def family(pid: int) -> set[int]:
    return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}


def has_ended(reply: object) -> bool:
    return isinstance(reply, wire.Rejected) or getattr(reply, "state", "") == "published"


def compiled(daemon: DaemonUnderTest, do: str = "publish", key: str = "", **values: object) -> object:
    """Submit a graph, and return how its job ended."""
    with raw_client(daemon.settings) as client:
        # The variable marks the processes of a worker.
        environment = daemon.environment(HERE=str(daemon.directory))
        message = daemon.submit(key=key, environment=environment, waiting=True)
        client.submit(message, graph(do, **values))
        return client.ended(message.id)


@pytest.mark.fault("worker-dies")
@pytest.mark.integration
@pytest.mark.parametrize("further", [0, 2], ids=["alone", "beside further jobs"])
def test_job_of_a_worker_that_ends_in_any_phase_is_retried_once_and_published(
    daemon: DaemonUnderTest, tmp_path: Path, tries: Callable[[int, int], int], further: int
) -> None:
    """A worker may begin a further job before the end of its own job. Such a job is published, too."""
    cases = list(itertools.product(PHASES[:-2] if further else PHASES, ENDS))  # replies follow the jobs' order
    number = tries(SLOTS, (10 if further else 25) * len(cases))
    before = daemon.stats()
    for first in range(0, number, SLOTS):
        submitted = {}
        with raw_client(daemon.settings) as client:
            for case in range(first, first + SLOTS):
                # 13 has no common factor with the number of phases or of ends, so even a few tries have different
                # phases and ends.
                phase, how = cases[case * 13 % len(cases)]
                key = f"{phase}-{how}-{case}"
                message = daemon.submit(
                    key=key, environment=daemon.environment(HERE=str(daemon.directory)), waiting=True
                )
                lowered = further > 0 and case % 2 == 1
                do = graph("end-once", mark=str(tmp_path / key), phase=phase, how=how, lowered=lowered)
                client.submit(message, do)
                submitted[message.id] = key
            for _ in range(further):
                message = daemon.submit(environment=daemon.environment(HERE=str(daemon.directory)), waiting=True)
                client.submit(message, graph(lowered=True))
                submitted[message.id] = "beside others"
            while submitted:
                reply = client.receive_until(has_ended)
                assert getattr(reply, "state", "") == "published", (submitted[reply.id], reply)
                del submitted[reply.id]
    after = daemon.stats()
    assert after.retried - before.retried <= number + number // SLOTS * further and after.failed == before.failed
    assert after.compiled - before.compiled >= number * (len(PHASES) - 1) // len(PHASES)
    assert len(list(tmp_path.iterdir())) == number, "each case ended a worker"


@pytest.mark.fault("compiler-dies")
@pytest.mark.integration
def test_jobs_of_workers_that_are_killed_together_are_all_published(
    daemon: DaemonUnderTest, tmp_path: Path, tries: Callable[[int, int], int]
) -> None:
    for number in range(tries(1, 160)):
        go = tmp_path / f"go{number}"
        with raw_client(daemon.settings) as client:
            messages = [daemon.submit(waiting=True) for _ in range(SLOTS)]
            for message in messages:
                client.submit(message, graph("wait-for", path=str(go)))
            busy = wait_until(
                lambda: len(found := [w.pid for w in daemon.status().workers if w.state == "busy"]) == SLOTS and found
            )
            for pid in busy:
                os.kill(pid, signal.SIGKILL)
            go.touch()
            published = set()
            while len(published) < SLOTS:
                reply = client.receive_until(lambda reply: getattr(reply, "state", "") == "published")
                published.add(reply.id)
            assert published == {message.id for message in messages}


@pytest.mark.fault("compiler-dies")
def test_worker_whose_guardian_or_compiler_is_killed_publishes_its_job(
    daemon: DaemonUnderTest, tmp_path: Path, tries: Callable[[int, int], int]
) -> None:
    for number in range(tries(1, 30)):
        go = tmp_path / f"go{number}"
        with raw_client(daemon.settings) as client:
            message = daemon.submit(waiting=True)
            client.submit(message, graph("wait-for", path=str(go)))
            worker = wait_until(lambda: [w.pid for w in daemon.status().workers if w.state == "busy"])[0]
            (guardian,) = psutil.Process(worker).children()
            guardian.kill()
            wait_until(lambda pid=guardian.pid: not alive(pid))
            go.touch()
            assert client.ended(message.id).state == "published"
            assert [w.pid for w in daemon.status().workers if w.pid == worker], "the worker goes on"


@pytest.mark.fault("deadly-graph")
def test_deadly_graph_is_quarantined_for_all_clients_until_a_retry_and_others_are_compiled(
    daemon: DaemonUnderTest, tries: Callable[[int, int], int]
) -> None:
    for number in range(tries(1, 40)):
        key = f"deadly{number}"
        reply = compiled(daemon, "die", key=key)
        assert isinstance(reply, wire.Rejected) and reply.code == "key-quarantined" and "2 workers" in reply.message
        failed = daemon.stats().failed
        for _ in range(3):
            other = compiled(daemon, "publish", key=key)
            assert isinstance(other, wire.Rejected) and other.code == "key-quarantined"
        assert daemon.stats().failed == failed, "no worker was given the graph"
        assert getattr(compiled(daemon), "state", "") == "published"
        with raw_client(daemon.settings) as client:
            client.send(wire.PREAMBLE, wire.encode(wire.Retry([key])))
            assert client.receive() == wire.Changed([key])
        assert getattr(compiled(daemon, key=key), "state", "") == "published"
