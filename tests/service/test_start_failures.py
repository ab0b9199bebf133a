"""Tests, without processes, of how the scheduler reacts to workers that do not start."""

from __future__ import annotations

import pytest
from precompiled.service.events import (
    Reply,
    RunJob,
    SetPriority,
    StartWorker,
    StopWorker,
    Tick,
    WorkerGone,
    WorkerReady,
)
from precompiled.service.start_failures import HOST_FULL_S, MAX_HOST_FULL
from support_scheduler import Host

from precompiled import wire


def test_no_worker_is_started_ahead_after_a_failed_start() -> None:
    host = Host(start_refused_s=60.0)
    start = host.only(StartWorker, host.expect())
    host.tell(WorkerGone(start.worker, "exit", "no such interpreter"))
    assert not host.expect()
    host.now += 61
    host.tell(Tick())
    assert host.expect()


def test_failed_starts_ahead_do_not_count_against_a_submitted_graph() -> None:
    host = Host()
    for _ in range(3):
        start = host.only(StartWorker, host.expect())
        host.tell(WorkerGone(start.worker, "exit"))
        host.now += 3600
        host.tell(Tick())
    start = host.only(StartWorker, host.submit("k"))
    retried = host.only(StartWorker, host.tell(WorkerGone(start.worker, "exit")))
    assert host.only(Reply, host.tell(WorkerGone(retried.worker, "exit"))).message.code == "worker-cannot-start"


def test_a_worker_started_ahead_without_a_job_times_out_and_is_not_repeated() -> None:
    host = Host(worker_idle_s=900.0)
    start = host.only(StartWorker, host.expect())
    host.tell(WorkerReady(start.worker))
    host.now += 901
    assert host.only(StopWorker, host.tell(Tick())).worker == start.worker
    host.tell(WorkerGone(start.worker, "idle"))
    assert not host.expect(), "no worker is started ahead again"
    assert host.only(StartWorker, host.submit("k"))


def test_a_spare_worker_without_a_job_prevents_spare_workers_only() -> None:
    host = Host(worker_idle_s=900.0)
    start = host.only(StartWorker, host.expect(tracing=False))
    host.tell(WorkerReady(start.worker))
    host.now += 901
    assert host.only(StopWorker, host.tell(Tick())).worker == start.worker
    host.tell(WorkerGone(start.worker, "idle"))
    assert not host.expect(tracing=False), "no spare worker is started again"
    assert host.only(StartWorker, host.expect())


def test_a_failed_start_of_a_spare_worker_prevents_spare_workers_only() -> None:
    host = Host(start_refused_s=60.0)
    start = host.only(StartWorker, host.expect(tracing=False))
    host.tell(WorkerGone(start.worker, "exit", "no such interpreter"))
    assert not host.expect(tracing=False)
    assert host.only(StartWorker, host.expect())


def test_no_spare_worker_is_started_after_one_for_a_trace_got_no_job() -> None:
    host = Host(worker_idle_s=900.0)
    start = host.only(StartWorker, host.expect(tracing=False))
    host.only(SetPriority, host.expect())
    host.tell(WorkerReady(start.worker))
    host.now += 901
    host.tell(Tick())
    host.tell(WorkerGone(start.worker, "idle"))
    assert not host.expect(tracing=False)
    assert not host.expect()


def test_jobs_of_an_interpreter_that_cannot_start_fail_and_it_is_refused_for_a_while() -> None:
    host = Host()
    first = host.only(StartWorker, host.submit("k"))
    second = host.only(StartWorker, host.tell(WorkerGone(first.worker, "died", "no torch")))
    reply = host.reply(host.tell(WorkerGone(second.worker, "died", "no torch")))
    assert reply.code == "worker-cannot-start" and "no torch" in reply.message
    assert host.reply(host.submit("k2")).code == "worker-cannot-start"
    assert isinstance(host.reply(host.submit("k3", env="b")), wire.Accepted)
    host.now += 61
    assert isinstance(host.reply(host.submit("k4")), wire.Accepted)


@pytest.mark.fault("memory")
@pytest.mark.reason("host-full")
def test_starts_on_a_full_host_are_retried_without_blaming_the_interpreter() -> None:
    """If another user has used up the host's processes, a worker cannot start. Such a failure must not count against
    the worker's interpreter.
    """
    host = Host()
    host.submit("k")
    for _ in range(MAX_HOST_FULL - 1):
        worker = host.all(StartWorker)[-1].worker
        assert not [item for item in host.tell(WorkerGone(worker, "host-full")) if isinstance(item, StartWorker)]
        assert host.scheduler.next_wake(host.now) == pytest.approx(HOST_FULL_S)
        host.now += HOST_FULL_S
        host.only(StartWorker, host.tell(Tick()))
    host.done(host.only(RunJob, host.tell(WorkerReady(host.all(StartWorker)[-1].worker))))
    assert not host.scheduler.jobs


@pytest.mark.reason("worker-cannot-start")
def test_a_host_that_stays_full_rejects_the_job_in_the_end() -> None:
    host = Host()
    host.submit("k", id="mine")
    for _ in range(MAX_HOST_FULL + 2):
        host.tell(WorkerGone(host.all(StartWorker)[-1].worker, "host-full", "no process is left"))
        host.now += HOST_FULL_S
        host.tell(Tick())
    reply = host.all(Reply)[-1].message
    assert (reply.code, reply.id) == ("worker-cannot-start", "mine") and "no process is left" in reply.message
