"""Tests of how the scheduler queues, runs and cancels jobs. The events and the time are fake."""

from __future__ import annotations

import pytest
from precompiled.service.events import (
    Asked,
    Cancelled,
    Count,
    KillWorker,
    Reply,
    RunJob,
    ShutDown,
    StartWorker,
    Tick,
    WorkerDone,
    WorkerGone,
    WorkerReady,
)
from support_scheduler import Host

from precompiled import wire


def test_a_job_is_queued_run_and_published() -> None:
    host = Host()
    said = host.submit("k", name="Model")
    (job,) = host.scheduler.jobs.values()
    start = host.only(StartWorker, said)
    assert host.reply(said).state == "queued"
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    assert (run.job.key, run.job.graph, run.job.attempt, run.job.name) == ("k", b"graph", 1, "Model")
    assert host.reply(host.done(run)).state == "published"
    assert (host.counted("submitted"), host.counted("compiled"), host.counted("compile_s")) == (1, 1, 1.0)
    assert not host.scheduler.jobs
    assert [step.split()[0] for _, step in job.story] == ["submit", "assign", "publish"]


def test_submits_of_one_user_and_key_share_a_job() -> None:
    host = Host()
    host.submit("k")
    said = host.submit("k")
    assert host.reply(said).state == "deduplicated"
    assert not [item for item in said if isinstance(item, StartWorker)]
    host.submit("k", uid=2)
    assert len(host.scheduler.jobs) == 2, "users do not share jobs"
    assert host.counted("deduplicated") == 1


def test_every_client_of_a_job_gets_its_end() -> None:
    host = Host()
    host.submit("k", id="one")
    host.submit("k", id="two")
    run = host.only(RunJob, host.tell(WorkerReady(host.only(StartWorker).worker)))
    replies = [item.message for item in host.done(run) if isinstance(item, Reply)]
    assert {(reply.id, reply.state) for reply in replies} == {("one", "published"), ("two", "published")}


def test_a_repeated_submit_is_not_counted_twice() -> None:
    host = Host()
    host.submit("k", id="one")
    assert host.reply(host.submit("k", id="one")).state == "queued"
    assert (host.counted("submitted"), host.counted("deduplicated")) == (1, 0)


def test_a_submit_after_the_publication_is_counted_as_deduplicated() -> None:
    host = Host()
    host.warm()
    host.done(host.only(RunJob, host.submit("k")))
    again = host.submit("k")
    assert host.reply(again).state == "running"
    host.done(host.only(RunJob, again), "exists")
    assert (host.counted("compiled"), host.counted("deduplicated"), host.counted("submitted")) == (1, 1, 2)


def test_waiting_clients_jobs_run_first() -> None:
    host = Host()
    host.warm()
    busy = host.only(RunJob, host.submit("running"))
    host.submit("background")
    host.submit("urgent", waiting=True)
    assert host.only(RunJob, host.done(busy)).job.key == "urgent"


def test_a_waiting_client_moves_a_background_job_ahead() -> None:
    host = Host()
    host.warm()
    busy = host.only(RunJob, host.submit("running"))
    host.submit("first")
    host.submit("second")
    assert host.submit("second", waiting=True)[-1].message.position == 0
    assert host.only(RunJob, host.done(busy)).job.key == "second"


def test_first_come_first_served_within_a_user_and_turns_between_users() -> None:
    host = Host(processes=4)
    host.warm(uid=1)
    host.warm(uid=2)
    run = host.only(RunJob, host.submit("running", uid=1))
    for key in ("a1", "a2", "a3"):
        host.submit(key, uid=1)
    for key in ("b1", "b2"):
        host.submit(key, uid=2)
    order = []
    for _ in range(5):
        run = host.only(RunJob, host.done(run))
        order.append(run.job.key)
    assert order == ["a1", "b1", "a2", "b2", "a3"]


def test_background_jobs_do_not_starve() -> None:
    host = Host(age_s=60.0)
    host.warm()
    run = host.only(RunJob, host.submit("running"))
    host.submit("background")
    for number in range(100):
        host.submit(f"waiting{number}", waiting=True)
        host.now += 10
        host.tell(Tick())
        run = host.only(RunJob, host.done(run))
        if run.job.key == "background":
            return
    raise AssertionError("it starved")


@pytest.mark.reason("busy")
def test_a_full_queue_replies_busy() -> None:
    host = Host(max_queue=3, max_queue_per_uid=2)
    for key in ("a", "b"):
        host.submit(key)
    reply = host.reply(host.submit("c"))
    assert isinstance(reply, wire.Busy)
    assert 0 < reply.retry_after_s <= 60
    assert host.reply(host.submit("a")).state == "deduplicated", "joining needs no room"
    assert isinstance(host.reply(host.submit("d", uid=2)), wire.Accepted)
    assert isinstance(host.reply(host.submit("e", uid=2)), wire.Busy), "user 1 holds no more jobs than user 2"
    assert [item.reason for item in host.all(Count) if item.counter == "rejected"] == ["busy"] * 2


def test_the_bytes_of_queued_graphs_are_limited() -> None:
    host = Host(max_queue_bytes=100)
    assert isinstance(host.reply(host.submit("a", blob=b"x" * 500)), wire.Accepted), "an empty queue accepts any size"
    assert isinstance(host.reply(host.submit("b", blob=b"x")), wire.Busy)


@pytest.mark.reason("shut-down")
def test_shut_down_replies_to_all_clients() -> None:
    host = Host()
    host.warm()
    host.submit("running")
    host.submit("queued")
    said = host.tell(ShutDown())
    assert [item.message.code for item in said if isinstance(item, Reply)] == ["stopping"] * 2
    assert host.only(KillWorker, said).reason == "shut-down"
    assert host.reply(host.submit("late")).code == "stopping"
    assert not host.scheduler.jobs
    assert host.tell(WorkerGone(host.only(KillWorker).worker, "shut-down")) == [] and not host.scheduler.has_processes


def test_events_of_unknown_workers_are_ignored() -> None:
    host = Host()
    for event in (WorkerReady(99), WorkerGone(99, "died"), WorkerDone(99, wire.Finished("i", "k", "failed", 0.0))):
        assert host.tell(event) == []


def test_a_queued_job_is_dropped_when_its_last_submit_is_cancelled() -> None:
    host = Host()
    host.warm()
    host.submit("running", id="r")
    host.submit("queued", id="q")
    dropped = next(job for job in host.scheduler.jobs.values() if job.submit.key == "queued")
    said = host.tell(Cancelled(1, ("q",)))
    assert {job.submit.key for job in host.scheduler.jobs.values()} == {"running"}
    assert not [item for item in said if isinstance(item, (KillWorker, Reply))]
    assert dropped.state == "dropped"


@pytest.mark.reason("cancelled")
def test_cancelling_a_running_job_kills_its_worker_and_frees_the_slot() -> None:
    host = Host()
    worker = host.warm()
    host.submit("old", id="o")
    host.submit("new", id="n")
    said = host.tell(Cancelled(1, ("o",)))
    assert host.only(KillWorker, said) == KillWorker(worker, "cancelled")
    host.tell(WorkerGone(worker, "cancelled"))
    starts = [item for item in host.said if isinstance(item, StartWorker)]
    run = host.only(RunJob, host.tell(WorkerReady(starts[-1].worker)))
    assert run.job.key == "new"
    assert host.counted("failed") == 0, "the job did not fail"
    host.done(run)
    host.submit("old", id="again")
    assert host.all(RunJob)[-1].job.key == "old"


def test_a_key_runs_again_after_a_cancel_during_its_timeout() -> None:
    """A submit after the cancel must create a new job, not join the job that is being killed. (AnyHistory found this
    bug.)
    """
    host = Host(job_timeout_s=100)
    worker = host.warm()
    host.submit("k", id="first")
    host.now += 101
    assert host.only(KillWorker, host.tell(Tick())) == KillWorker(worker, "timeout")
    assert not [item for item in host.tell(Cancelled(1, ("first",))) if isinstance(item, KillWorker)]
    host.submit("k", id="second")
    host.tell(WorkerGone(worker, "timeout"))
    run = host.only(RunJob, host.tell(WorkerReady(host.all(StartWorker)[-1].worker)))
    assert run.job.id == "second"
    host.done(run)
    assert not host.scheduler.jobs


def test_a_job_with_another_submit_is_not_cancelled() -> None:
    host = Host()
    host.warm()
    host.submit("k", id="watch")
    host.submit("k", id="client")
    assert not [item for item in host.tell(Cancelled(1, ("watch",))) if isinstance(item, KillWorker)]
    (job,) = host.scheduler.jobs.values()
    assert set(job.interested) == {"client"}
    host.tell(Cancelled(2, ("client",)))
    assert host.scheduler.jobs, "a user cannot cancel another user's job"


def asked(host: Host, message: wire.GiveUp | wire.Retry, uid: int | None = 1) -> list[str]:
    """Send a GiveUp or Retry, and return the keys of the reply."""
    (reply,) = [
        item for item in host.tell(Asked(b"cli", uid, message)) if isinstance(item, Reply) and item.client == b"cli"
    ]
    assert isinstance(reply.message, wire.Changed)
    return reply.message.keys


@pytest.mark.reason("job-cancelled")
def test_give_up_cancels_jobs_by_key_prefix_and_replies_to_their_clients() -> None:
    host = Host()
    worker = host.warm()
    host.submit("ab12-running", id="r")
    host.submit("ab12-queued", id="q")
    host.submit("cd34", id="other")
    assert asked(host, wire.GiveUp(["ab12", "nothing"])) == ["ab12-queued", "ab12-running"]
    refusals = {
        item.message.id: item.message.code
        for item in host.said
        if isinstance(item, Reply) and isinstance(item.message, wire.Rejected)
    }
    assert refusals == {"r": "job-cancelled", "q": "job-cancelled"}
    assert host.all(KillWorker) == [KillWorker(worker, "cancelled")]
    assert {job.submit.key for job in host.scheduler.jobs.values()} == {"cd34"}
    host.tell(WorkerGone(worker, "cancelled"))
    assert asked(host, wire.GiveUp(["cd34"]), uid=2) == [], "a user cannot cancel another user's job"
    assert asked(host, wire.GiveUp(["cd34"]), uid=None) == ["cd34"], "root can cancel every job"
    host.submit("ab12-running", id="again")
    assert host.scheduler.jobs, "the key can be submitted again"


def test_a_retry_ends_a_quarantine() -> None:
    host = Host(job_timeout_s=100)
    worker = host.warm()
    host.submit("k1", id="first")
    host.now += 101
    host.tell(Tick())
    host.tell(WorkerGone(worker, "timeout"))
    host.submit("k1", id="second")
    assert host.all(Reply)[-1].message.code == "key-quarantined"
    assert asked(host, wire.Retry(["k1"]), uid=2) == []
    assert asked(host, wire.Retry(["k1"])) == ["k1"] and asked(host, wire.Retry(["k1"])) == []
    host.submit("k1", id="third")
    assert [job.submit.id for job in host.scheduler.jobs.values()] == ["third"]
