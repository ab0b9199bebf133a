"""Tests that a worker lowers the next job while C++ compilers build the kernels of its current job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from precompiled.service.events import (
    Asked,
    Cancelled,
    KillWorker,
    Reply,
    RunJob,
    SetPriority,
    ShutDown,
    StartWorker,
    StopWorker,
    Tick,
    WorkerGone,
    WorkerLowered,
    WorkerReady,
)
from support_daemon import graph, raw_client, running_daemon, wait_until
from support_scheduler import Host

from precompiled import wire

TWO = ("first", "second")


def lower(host: Host, run: RunJob) -> list[Any]:
    return host.tell(WorkerLowered(run.worker, wire.Lowered(run.job.id, run.job.key)))


def refused(host: Host, said: list[Any]) -> wire.Rejected:
    found: wire.Rejected = host.only(wire.Rejected, [item.message for item in said if isinstance(item, Reply)])
    return found


def with_two_jobs(**limits: Any) -> tuple[Host, RunJob, RunJob]:
    """A host whose only worker builds the kernels of one job and lowers another job."""
    host = Host(**limits)
    host.warm()
    first = host.only(RunJob, host.submit("first", id="id-first"))
    assert first.job.may_overlap and not lower(host, first)
    second = host.only(RunJob, host.submit("second", id="id-second"))
    assert second.worker == first.worker
    host.said.clear()
    return host, first, second


@pytest.mark.parametrize("earlier", [0, 1], ids=TWO)
def test_a_lowered_worker_takes_one_further_job_and_ends_them_in_any_order(earlier: int) -> None:
    host, *runs = with_two_jobs()
    first, second = runs
    lower(host, second)
    host.submit("third")
    assert not host.all(RunJob), "at most two jobs at the same time"
    third = host.only(RunJob, host.done(runs[earlier]))
    assert (third.worker, third.job.key) == (first.worker, "third")
    host.done(runs[1 - earlier])
    assert host.scheduler.workers[first.worker].state == "busy"
    host.done(third)
    assert host.scheduler.workers[first.worker].state == "idle" and not host.scheduler.busy


def test_a_job_that_waits_is_taken_as_soon_as_the_worker_has_lowered_its_own_one() -> None:
    host = Host()
    host.warm()
    first = host.only(RunJob, host.submit("first"))
    host.submit("second")
    assert host.only(RunJob, lower(host, first)).job.key == "second"


def test_a_worker_that_has_lowered_an_unknown_job_is_ended() -> None:
    host, first, _ = with_two_jobs()
    assert host.only(KillWorker, host.tell(WorkerLowered(first.worker, wire.Lowered("i", "k")))).reason == "protocol"


def test_an_idle_worker_and_a_lowered_one_are_preferred_to_a_new_one() -> None:
    host = Host(slots=2, processes=4)
    for _ in range(2):
        host.submit("a")
        host.submit("b")
    starts = host.all(StartWorker)
    runs = [host.only(RunJob, host.tell(WorkerReady(start.worker))) for start in starts]
    lower(host, runs[0])
    host.done(runs[1])
    host.said.clear()
    assert host.only(RunJob, host.submit("c")).worker == runs[1].worker, "the idle one"
    assert host.only(RunJob, host.submit("d")).worker == runs[0].worker
    assert not host.all(StartWorker)


@pytest.mark.parametrize(
    "values",
    [{"env": "b"}, {"uid": 2}, {"idle": True}, {"device": "cuda:GPU-1"}],
    ids=lambda values: next(iter(values)),
)
def test_only_a_job_of_the_same_kind_is_taken(values: dict[str, Any]) -> None:
    host = Host()
    host.warm()
    lower(host, host.only(RunJob, host.submit("first")))
    host.said.clear()
    host.submit("second", **values)
    host.submit("third")
    assert "second" not in [run.job.key for run in host.all(RunJob)]
    assert bool(host.all(RunJob)) == ("idle" in values), "the queue's order stays"


def test_a_background_job_is_not_taken_beside_one_that_a_client_waits_for() -> None:
    """With a background job, the worker would give way to other programs, although a client waits for the first job."""
    host = Host()
    host.warm()
    lower(host, host.only(RunJob, host.submit("first", waiting=True)))
    host.said.clear()
    host.submit("second")
    assert not host.all(RunJob)
    assert host.only(RunJob, host.submit("third", waiting=True)).job.key == "third"


@pytest.mark.fault("deadly-graph")
@pytest.mark.parametrize("deadly", TWO)
def test_two_jobs_of_a_worker_that_dies_are_run_alone_and_only_the_deadly_one_is_quarantined(deadly: str) -> None:
    host, first, _ = with_two_jobs()
    start = host.only(StartWorker, host.tell(WorkerGone(first.worker, "died", "SIGKILL")))
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    attempts = []
    while host.scheduler.busy:
        assert not lower(host, run), "not beside another job"
        attempts.append(run.job.key)
        if run.job.key == deadly:
            said = host.tell(WorkerGone(run.worker, "died", "SIGKILL"))
            starts = [item for item in said if isinstance(item, StartWorker)]
            said += host.tell(WorkerReady(starts[0].worker)) if starts else []
        else:
            said = host.done(run)
        run = next((item for item in said if isinstance(item, RunJob)), run)
    (other,) = {*TWO} - {deadly}
    assert sorted(attempts) == sorted([deadly, deadly, other])
    assert refused(host, host.said).key == deadly


def test_after_the_death_of_a_worker_with_two_jobs_workers_have_one_job_for_a_while() -> None:
    """Perhaps the memory is too small for two jobs at once."""
    host, first, _ = with_two_jobs(quarantine_s=100.0)
    start = host.only(StartWorker, host.tell(WorkerGone(first.worker, "memory", "too much")))
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    host.done(host.only(RunJob, host.done(run)))
    third = host.only(RunJob, host.submit("third"))
    lower(host, third)
    assert not [item for item in host.submit("fourth") if isinstance(item, RunJob)]
    host.done(host.only(RunJob, host.done(third)))
    host.now += 101
    lower(host, host.only(RunJob, host.submit("fifth")))
    assert host.only(RunJob, host.submit("sixth"))


@pytest.mark.fault("hangs")
def test_a_job_that_takes_too_long_is_quarantined_only_if_it_was_alone() -> None:
    """A job that takes too long may wait for something that the worker's other job holds."""
    host = Host(job_timeout_s=100)
    host.warm()
    first = host.only(RunJob, host.submit("first"))
    host.now += 60
    lower(host, first)
    host.submit("second")
    host.now += 50
    assert host.only(KillWorker, host.tell(Tick())).reason == "timeout"
    start = host.only(StartWorker, host.tell(WorkerGone(first.worker, "timeout", "stack")))
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    assert (run.job.key, run.job.attempt) == ("first", 2)
    assert not lower(host, run)
    host.now += 101
    start = host.only(StartWorker, host.tell(Tick()))
    assert refused(host, host.tell(WorkerGone(run.worker, "timeout", "stack"))).key == "first"
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    assert (run.job.key, run.job.attempt) == ("second", 2)


@pytest.mark.parametrize("cancelled", TWO)
def test_if_one_job_is_cancelled_the_other_is_started_again_without_a_count(cancelled: str) -> None:
    host, first, _ = with_two_jobs()
    (other,) = {*TWO} - {cancelled}
    said = host.tell(Cancelled(1, (f"id-{cancelled}",)))
    assert host.only(KillWorker, said).reason == "cancelled"
    start = host.only(StartWorker, [*said, *host.tell(WorkerGone(first.worker, "cancelled"))])
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    assert (run.job.key, run.job.attempt) == (other, 1)
    host.done(run)
    assert not host.scheduler.busy


def test_both_jobs_end_if_both_are_given_up_or_the_daemon_stops() -> None:
    for event in (Asked(b"c", 1, wire.GiveUp(["first", "second"])), ShutDown()):
        host, _, _ = with_two_jobs()
        assert host.only(KillWorker, host.tell(event))
        assert not host.scheduler.busy


def test_a_slot_for_another_user_takes_both_jobs_from_the_worker() -> None:
    host, _, _ = with_two_jobs(processes=1, share_s=3.0, share_run_s=60.0)
    host.submit("other", uid=2)
    host.now += 61
    said = host.tell(Tick())
    assert host.only(KillWorker, said).reason == "displaced"
    assert [host.scheduler.jobs[1, "/store", key].state for key in TWO] == ["queued", "queued"]


def test_a_worker_is_replaced_after_its_last_job_and_not_during_it() -> None:
    host = Host(jobs_per_worker=3)
    host.warm()
    first = host.only(RunJob, host.submit("first"))
    lower(host, first)
    second = host.only(RunJob, host.submit("second"))
    lower(host, second)
    host.submit("third")
    assert not host.all(StopWorker)
    said = host.done(first)
    assert not [item for item in said if isinstance(item, (StopWorker, RunJob))], "the second job is its last"
    assert host.only(StopWorker, host.done(second)).reason == "recycled"


def test_a_client_that_begins_to_wait_for_the_earlier_job_raises_the_worker() -> None:
    host, first, _ = with_two_jobs()
    assert host.only(SetPriority, host.submit("first", waiting=True)).worker == first.worker


@pytest.mark.integration
def test_a_real_worker_begins_the_next_job_before_it_ends_its_own(tmp_path: Path) -> None:
    go_on, log = tmp_path / "go-on", tmp_path / "log"
    with running_daemon(tmp_path) as daemon, raw_client(daemon.settings) as client:
        first, second = daemon.submit(), daemon.submit()
        client.submit(first, graph("wait-for", path=str(go_on), lowered=True))
        client.submit(second, graph(log=str(log)))
        wait_until(lambda: log.exists() and log.read_text().endswith("\n"), "the second job begins")
        assert [worker.state for worker in daemon.status().workers] == ["busy"]
        assert not (daemon.store / first.key).exists()
        assert client.ended(second.id).state == "published"
        go_on.touch()
        assert client.ended(first.id).state == "published"


def test_a_worker_that_has_lost_its_device_takes_no_further_job() -> None:
    host, first, second = with_two_jobs()
    lower(host, second)
    host.submit("third")
    said = host.done(first, "failed", reason="device-lost")
    assert not [item for item in said if isinstance(item, RunJob)]
    assert host.only(StopWorker, host.done(second)).reason == "device-lost"


@pytest.mark.integration
@pytest.mark.parametrize("lowered", [True, False])
def test_an_error_that_is_not_of_the_job_ends_the_worker_at_once(tmp_path: Path, lowered: bool) -> None:
    with running_daemon(tmp_path) as daemon, raw_client(daemon.settings) as client:
        message = daemon.submit()
        client.submit(message, graph("panic-once", mark=str(tmp_path / "mark"), lowered=lowered))
        assert client.ended(message.id).state == "published"
        assert daemon.stats().retried == 1
