"""Tests, without processes, of a user's share of the queue and the slots while other users hold more."""

from __future__ import annotations

import pytest
from precompiled.service.events import (
    KillWorker,
    Moved,
    Reply,
    RunJob,
    StartWorker,
    StopWorker,
    Tick,
    WorkerGone,
    WorkerReady,
)
from support_scheduler import Host

from precompiled import wire


def test_users_with_many_queued_jobs_lose_some_to_a_user_with_few() -> None:
    host = Host(max_queue=10, max_queue_per_uid=5)
    for uid in (2, 3):
        for number in range(5):
            host.submit(f"k{number}", uid=uid, id=f"u{uid}-{number}")
    accepted = 0
    for number in range(4):
        said = host.submit(f"k{number}", uid=1, id=f"u1-{number}")
        kinds = {item.message.id: type(item.message) for item in said if isinstance(item, Reply)}
        accepted += kinds[f"u1-{number}"] is wire.Accepted
    assert accepted == 3, "the new user gets an equal share, rounded"
    displaced = [item.message.id for item in host.all(Reply) if isinstance(item.message, wire.Busy)]
    assert displaced[:3] == ["u2-4", "u3-4", "u2-3"], "the last jobs of the users who hold the most"
    assert host.scheduler.queue_depth == 10
    assert isinstance(host.reply(host.submit("k4", uid=2, id="u2-again")), wire.Busy)


def test_queue_bytes_are_shared_like_queue_places() -> None:
    host = Host(max_queue_bytes=1000)
    for uid in (2, 3):
        for number in range(5):
            host.submit(f"k{number}", uid=uid, blob=b"x" * 100)
    host.submit("k", uid=1, blob=b"x" * 150, id="mine")
    assert [item.message for item in host.all(Reply) if item.message.id == "mine"][-1].state == "queued"
    assert sum(job.size for job in host.scheduler.jobs.values()) <= 1000


def test_a_user_without_a_slot_gets_one_above_the_limit() -> None:
    host = Host(slots=1, processes=3)
    host.warm(uid=2)
    host.submit("long", uid=2)
    host.submit("second", uid=2)
    host.submit("mine", uid=1)
    host.now += host.scheduler.limits.share_s - 1
    assert host.tell(Tick()) == []
    assert host.scheduler.next_wake(host.now) == pytest.approx(1.0)
    host.now += 1
    start = host.only(StartWorker, host.tell(Tick()))
    assert start.uid == 1
    assert host.only(RunJob, host.tell(WorkerReady(start.worker))).job.key == "mine"
    host.now += 1000
    assert not [item for item in host.tell(Tick()) if isinstance(item, StartWorker)], "only one, for user 1"


def test_a_single_user_gets_no_slot_above_the_limit() -> None:
    host = Host(slots=1, processes=3)
    host.warm()
    host.submit("long")
    host.submit("second")
    host.now += 30
    assert host.tell(Tick()) == []


@pytest.mark.reason("displaced")
def test_without_a_free_process_the_longest_running_job_is_stopped_and_queued_again() -> None:
    host = Host(slots=1, processes=1)
    worker = host.warm(uid=2)
    host.submit("long", uid=2, id="long", waiting=True)
    host.submit("mine", uid=1)
    limits = host.scheduler.limits
    host.now += limits.share_run_s - 1
    assert not [item for item in host.tell(Tick()) if isinstance(item, KillWorker)]
    host.now += 1
    said = host.tell(Tick())
    assert host.only(KillWorker, said) == KillWorker(worker, "displaced")
    assert host.only(Moved, said).state == "queued"
    host.tell(WorkerGone(worker, "displaced"))
    start = host.only(StartWorker)
    assert start.uid == 1, "the waiting client of the other user does not come first"
    host.done(host.only(RunJob, host.tell(WorkerReady(start.worker))))
    assert [job.submit.key for job in host.scheduler.jobs.values()] == ["long"]
    (job,) = host.scheduler.jobs.values()
    assert (job.deaths, job.displaced) == (0, 1), "the displacement does not count as a death"


def test_each_displacement_doubles_the_time_of_a_job() -> None:
    host = Host(slots=1, processes=1)
    host.warm(uid=2)
    host.submit("long", uid=2)
    limits = host.scheduler.limits
    times = []
    for number in range(4):
        began = host.now
        host.submit(f"mine{number}", uid=1)
        killed: list[object] = []
        while not killed:
            host.now += limits.share_run_s
            killed = [item for item in host.tell(Tick()) if isinstance(item, KillWorker)]
        times.append((host.now - began) / limits.share_run_s)
        host.tell(WorkerGone(killed[0].worker, "displaced"))
        host.tell(WorkerReady(host.all(StartWorker)[-1].worker))
        host.done(host.all(RunJob)[-1])
        host.tell(WorkerGone(host.all(StopWorker)[-1].worker, "evicted"))
        host.tell(WorkerReady(host.all(StartWorker)[-1].worker))
        assert host.all(RunJob)[-1].job.key == "long"
    assert times == [1, 2, 4, 4]


def test_a_worker_that_never_starts_loses_its_place_to_another_user() -> None:
    host = Host(slots=1, processes=1)
    host.submit("k", uid=2)
    (stuck,) = [item.worker for item in host.all(StartWorker)]
    host.submit("mine", uid=1)
    host.now += host.scheduler.limits.share_run_s
    assert host.only(KillWorker, host.tell(Tick())).worker == stuck
    host.tell(WorkerGone(stuck, "displaced"))
    assert host.all(StartWorker)[-1].uid == 1
    assert "k" in [job.submit.key for job in host.scheduler.jobs.values()], "its start has not failed"
