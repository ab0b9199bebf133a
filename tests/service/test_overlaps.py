"""Tests that a worker lowers the next job while C++ compilers build the kernels of its own one."""

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
    """A host whose only worker builds the kernels of one job and lowers another."""
    host = Host(**limits)
    host.warm()
    first = host.only(RunJob, host.submit("first", id="id-first"))
    assert first.job.may_overlap and not lower(host, first)
    second = host.only(RunJob, host.submit("second", id="id-second"))
    assert second.worker == first.worker
    host.said.clear()
    return host, first, second


def test_a_lowered_worker_takes_the_next_job_and_ends_the_earlier_one_first() -> None:
    host, first, second = with_two_jobs()
    lower(host, second)
    host.submit("third")
    assert not host.all(RunJob), "at most two jobs at the same time"
    third = host.only(RunJob, host.done(first))
    assert (third.worker, third.job.key) == (first.worker, "third")
    assert host.scheduler.workers[first.worker].state == "busy"
    host.done(second)
    host.done(third)
    assert host.scheduler.workers[first.worker].state == "idle" and not host.scheduler.busy


def test_a_job_that_waits_is_taken_as_soon_as_the_worker_has_lowered_its_own_one() -> None:
    host = Host()
    host.warm()
    first = host.only(RunJob, host.submit("first"))
    host.submit("second")
    assert host.only(RunJob, lower(host, first)).job.key == "second"


@pytest.mark.parametrize("wrong", ["second first", "not its own", "idle"])
def test_a_worker_that_confuses_its_jobs_is_ended(wrong: str) -> None:
    if wrong == "idle":
        host = Host()
        said = host.tell(WorkerLowered(host.warm(), wire.Lowered("i", "k")))
    else:
        host, first, second = with_two_jobs()
        said = host.done(second) if wrong == "second first" else lower(host, first)
    assert host.only(KillWorker, said).reason == "protocol"


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
    """The worker would give way to other programs, although a client waits."""
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


@pytest.mark.fault("hangs")
def test_only_the_job_that_takes_too_long_is_quarantined() -> None:
    host = Host(job_timeout_s=100)
    host.warm()
    first = host.only(RunJob, host.submit("first"))
    host.now += 60
    lower(host, first)
    host.submit("second")
    host.now += 50
    assert host.only(KillWorker, host.tell(Tick())).reason == "timeout"
    said = host.tell(WorkerGone(first.worker, "timeout", "stack"))
    assert refused(host, said).key == "first"
    run = host.only(RunJob, host.tell(WorkerReady(host.only(StartWorker, said).worker)))
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
        go_on.touch()
        ended = [client.receive_until(lambda reply: getattr(reply, "state", "") == "published").key for _ in TWO]
    assert ended == [first.key, second.key]
