"""Tests, without processes, of a job's next state when its worker reports an outcome or dies."""

from __future__ import annotations

import pytest
from precompiled.service.events import (
    KillWorker,
    RunJob,
    StartWorker,
    StopWorker,
    Tick,
    WorkerDone,
    WorkerGone,
    WorkerReady,
)
from support_scheduler import Host

from precompiled import wire


@pytest.mark.fault("deadly-graph")
@pytest.mark.reason("died")
def test_a_job_is_retried_once_after_its_worker_dies_and_then_quarantined() -> None:
    host = Host()
    host.warm()
    run = host.only(RunJob, host.submit("k"))
    start = host.only(StartWorker, host.tell(WorkerGone(run.worker, "died", "SIGKILL")))
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    assert run.job.attempt == 2
    for reply in (host.reply(host.tell(WorkerGone(run.worker, "died", "SIGKILL"))), host.reply(host.submit("k"))):
        assert reply.code == "key-quarantined" and "`precompiled daemon retry k`" in reply.action
    assert isinstance(host.reply(host.submit("k", uid=2)), wire.Accepted), "other users' keys are not quarantined"
    host.now += 3600
    host.tell(Tick())
    assert isinstance(host.reply(host.submit("k")), wire.Accepted)
    assert (host.counted("retried"), host.counted("failed")) == (1, 1)


@pytest.mark.fault("deadly-graph")
def test_the_first_worker_that_dies_before_it_read_the_graph_does_not_count() -> None:
    host = Host()
    host.warm()
    run = host.only(RunJob, host.submit("k"))
    for unread in (True, True):
        start = host.only(StartWorker, host.tell(WorkerGone(run.worker, "died", "SIGKILL", unread)))
        run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    reply = host.reply(host.tell(WorkerGone(run.worker, "died", "SIGKILL", True)))
    assert reply.code == "key-quarantined" and "killed 2 workers" in reply.message


@pytest.mark.fault("hangs")
@pytest.mark.reason("timeout")
def test_a_job_that_times_out_is_quarantined_without_a_retry() -> None:
    host = Host(job_timeout_s=100)
    host.warm()
    run = host.only(RunJob, host.submit("k"))
    host.now += 101
    assert host.only(KillWorker, host.tell(Tick())).reason == "timeout"
    # The outcome arrives after the timeout, so the scheduler ignores it.
    host.tell(WorkerDone(run.worker, wire.Finished(run.job.id, "k", "published", 1.0)))
    reply = host.reply(host.tell(WorkerGone(run.worker, "died")))
    assert reply.code == "key-quarantined" and "longer than 100 s" in reply.message


def test_a_failed_compile_leaves_the_worker_alive() -> None:
    host = Host()
    number = host.warm()
    run = host.only(RunJob, host.submit("k"))
    reply = host.reply(host.done(run, "failed", reason="boom", message="it is broken"))
    assert (reply.code, reply.message) == ("compile-failed", "it is broken")
    assert host.only(RunJob, host.submit("other")).worker == number


@pytest.mark.reason("store-unwritable", "store-unreadable", "store-untrusted", "too-many-variants")
@pytest.mark.parametrize("code", ["store-unwritable", "store-unreadable", "store-untrusted", "too-many-variants"])
def test_store_errors_reach_the_client_with_their_own_code(code: str) -> None:
    """A failed store cannot keep a failure record, so the reply to the client must carry the store's error code."""
    host = Host()
    host.warm()
    run = host.only(RunJob, host.submit("k"))
    reply = host.reply(host.done(run, "failed", reason=code, message="/x cannot be used. Make it usable"))
    assert (reply.code, reply.message) == (code, "/x cannot be used. Make it usable")


@pytest.mark.fault("worker-dies")
@pytest.mark.reason("device-lost")
def test_a_worker_that_lost_its_gpu_is_replaced_and_the_key_is_not_quarantined() -> None:
    host = Host()
    number = host.warm()
    run = host.only(RunJob, host.submit("k"))
    host.submit("next")
    said = host.done(run, "failed", reason="device-lost", message="unspecified launch failure")
    assert host.reply(said).code == "device-lost"
    stopped = host.only(StopWorker, said)
    assert (stopped.worker, stopped.reason) == (number, "device-lost")
    assert not [order for order in said if isinstance(order, RunJob)], "the worker gets no further job"
    other = host.only(StartWorker, said).worker
    host.tell(WorkerGone(number, "device-lost"))
    run = host.only(RunJob, host.tell(WorkerReady(other)))
    assert run.job.key == "next"
    host.done(run)
    assert host.only(RunJob, host.submit("k")).job.key == "k", "the key is not quarantined"


@pytest.mark.reason("gpu-unavailable")
def test_a_worker_whose_gpu_was_full_stays_and_the_key_is_not_quarantined() -> None:
    host = Host()
    host.warm()
    said = host.done(host.only(RunJob, host.submit("k")), "failed", reason="gpu-unavailable", message="out of memory")
    assert host.reply(said).code == "gpu-unavailable"
    assert not [order for order in said if isinstance(order, StopWorker)]
    assert host.only(RunJob, host.submit("k")).job.key == "k", "the key is not quarantined"


def test_a_job_that_another_host_compiles_is_parked_and_holds_no_slot() -> None:
    host = Host()
    worker = host.warm()
    first = host.only(RunJob, host.submit("a"))
    assert first.job.may_park
    host.submit("b")
    # The next job gets the slot at once. The parked job keeps its place in the queue and runs again after 5 s.
    assert host.only(RunJob, host.done(first, "parked", again_s=5.0)).job.key == "b"
    assert host.scheduler.next_wake(host.now) is not None and host.scheduler.queue_depth == 1
    host.done(host.all(RunJob)[-1])
    assert not [item for item in host.tell(Tick()) if isinstance(item, RunJob)]
    assert (host.scheduler.next_wake(host.now) or 99.0) <= 5.0
    host.now += 5.1
    again = host.only(RunJob, host.tell(Tick()))
    assert (again.job.key, again.job.attempt, again.worker) == ("a", 1, worker)
    said = host.done(again, "exists")
    assert host.reply(said).state == "published"


def test_a_parked_job_takes_no_threads_from_the_others() -> None:
    host = Host(cores=4, slots=2, processes=2)
    host.warm()
    host.done(host.only(RunJob, host.submit("a")), "parked", again_s=30.0)
    assert host.only(RunJob, host.submit("b")).job.compile_threads == 4


@pytest.mark.reason("protocol")
def test_a_worker_that_answers_for_another_job_is_killed() -> None:
    host = Host()
    host.warm()
    run = host.only(RunJob, host.submit("k"))
    said = host.tell(WorkerDone(run.worker, wire.Finished("other", "other", "published", 1.0)))
    assert host.only(KillWorker, said).reason == "protocol"
    host.only(StartWorker, host.tell(WorkerGone(run.worker, "protocol")))


@pytest.mark.reason("protocol")
def test_a_worker_that_reports_kept_is_killed() -> None:
    """Only couriers may report "kept". If a worker could report "kept", the scheduler would give that worker the same
    job forever.
    """
    host = Host()
    worker = host.warm()
    host.submit("k")
    said = host.done(host.only(RunJob), "kept")
    assert host.only(KillWorker, said) == KillWorker(worker, "protocol")
