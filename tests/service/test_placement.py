"""Tests, without processes, of how the scheduler assigns jobs to workers and of when it starts and stops workers."""

from __future__ import annotations

import pytest
from precompiled.service.events import (
    KillWorker,
    RunJob,
    SetPriority,
    ShutDown,
    StartWorker,
    StopWorker,
    Tick,
    WorkerGone,
    WorkerReady,
)
from support_scheduler import Host, interpreter


def test_background_jobs_yield_at_first_and_waiting_jobs_never() -> None:
    host = Host(yield_s=4.0, slots=2, processes=4)
    background = host.only(StartWorker, host.submit("a"))
    assert background.yields_until == host.now + 4
    host.now += 3
    waiting = host.only(StartWorker, host.submit("b", env="b", waiting=True))
    assert waiting.yields_until == 0
    runs = [host.only(RunJob, host.tell(WorkerReady(start.worker))) for start in (background, waiting)]
    assert [run.yields_until for run in runs] == [host.now + 1, 0], "the time counts from the submit"


def test_jobs_of_idle_priority_do_not_evict_each_others_workers_before_one_begins() -> None:
    host = Host(slots=1, processes=1)
    for env in "ab":
        host.submit(f"whole-{env}", env=env, idle=True)
    start = host.only(StartWorker)
    assert not host.tell(WorkerReady(start.worker)), "neither begins nor makes room yet"
    host.now += 5
    run = host.only(RunJob, host.tell(Tick()))
    assert (run.job.key, run.worker) == ("whole-a", start.worker)
    host.done(run)
    host.now += 5
    assert host.only(StopWorker, host.tell(Tick())).reason == "evicted"
    start = host.only(StartWorker, host.tell(WorkerGone(start.worker, "evicted")))
    host.tell(WorkerReady(start.worker))
    host.now += 5
    assert host.only(RunJob, host.tell(Tick())).job.key == "whole-b"


def test_a_job_of_idle_priority_runs_last_yields_and_takes_no_slot() -> None:
    host = Host(slots=1, processes=4, yield_s=1.0)
    host.warm()
    first = host.only(RunJob, host.submit("first"))
    host.submit("whole", idle=True)
    host.submit("next whole", idle=True)
    host.submit("second")
    second = host.only(RunJob, host.done(first))
    assert second.job.key == "second", "a background job precedes one of idle priority"
    said = host.done(second)
    assert not [item for item in said if isinstance(item, RunJob)], "the client may soon wait for a further graph"
    host.now += 5
    whole = host.only(RunJob, host.tell(Tick()))
    assert (whole.job.key, whole.yields_until) == ("whole", host.now + 60)
    start = host.only(StartWorker, host.submit("third"))
    assert start.yields_until == host.now + 1, "the compile of idle priority takes no slot"
    third = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    assert (third.job.key, third.yields_until) == ("third", host.now + 1)
    assert not [said for said in host.done(third) if isinstance(said, RunJob)], (
        "at most one job per slot runs at idle priority"
    )
    host.now += 5
    assert host.only(RunJob, host.done(whole)).job.key == "next whole", "on the worker that has been idle"


def test_a_client_without_compiled_code_ends_the_idle_priority_of_a_job() -> None:
    host = Host(slots=1, yield_s=1.0)
    host.warm()
    host.now += 5
    whole = host.only(RunJob, host.submit("whole", idle=True))
    host.now += 10
    raised = host.only(SetPriority, host.submit("whole"))
    assert (raised.worker, raised.yields_until) == (whole.worker, whole.yields_until - 60 + 1)
    host.submit("whole", idle=True)
    assert host.all(SetPriority) == [raised], "no client lowers the priority"
    assert host.only(SetPriority, host.submit("whole", waiting=True)).yields_until == 0


def test_an_expected_graph_uses_the_worker_that_was_started_ahead() -> None:
    host = Host(yield_s=4.0)
    start = host.only(StartWorker, host.expect())
    assert (start.uid, start.device, start.yields_until) == (1, "cpu", host.now + 4)
    assert not host.expect(), "a second expectation starts no second worker"
    host.now += 3
    assert host.reply(host.submit("k")).state == "queued"
    assert host.all(StartWorker) == [start]
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    assert (run.job.key, run.yields_until) == ("k", host.now + 4)


def test_a_spare_worker_takes_no_slot_and_leaves_room_for_a_worker_of_another_seat() -> None:
    host = Host(slots=1, processes=2)
    spare = host.only(StartWorker, host.expect(tracing=False, env="a"))
    assert spare.yields_until == host.now + 900
    assert not host.expect(tracing=False, env="b"), "there is at most one"
    other = host.only(StartWorker, host.submit("k", env="b"))
    assert host.only(RunJob, host.tell(WorkerReady(other.worker))).job.key == "k"
    assert not host.tell(WorkerReady(spare.worker))
    assert not Host(slots=1, processes=1).expect(tracing=False), "no room for one more"


@pytest.mark.parametrize("waiting", [False, True])
def test_a_spare_worker_becomes_ordinary_when_its_graph_is_traced_or_submitted(waiting: bool) -> None:
    host = Host(slots=1, processes=2, yield_s=1.0)
    spare = host.only(StartWorker, host.expect(tracing=False))
    raised = host.only(SetPriority, host.submit("k", waiting=waiting))
    assert (raised.worker, raised.yields_until) == (spare.worker, 0.0 if waiting else host.now + 1)
    assert not [said for said in host.submit("other", env="b") if isinstance(said, StartWorker)], "the slot is taken"
    traced = Host(slots=1, processes=2, yield_s=1.0)
    spare = traced.only(StartWorker, traced.expect(tracing=False))
    assert traced.only(SetPriority, traced.expect()).yields_until == traced.now + 1
    assert not traced.expect(), "once"


def test_an_expected_graph_takes_no_slot_or_worker_from_others() -> None:
    host = Host(slots=2, processes=2)
    host.submit("k")
    assert not host.expect(env="b"), "the free slot is for further jobs"
    full = Host(processes=1)
    full.warm("a")
    assert not full.expect(env="b"), "no warm worker is evicted"
    assert not full.expect(env="a"), "a warm worker exists already"
    stopping = Host()
    stopping.tell(ShutDown())
    assert not stopping.expect()


def test_cores_are_divided_among_running_and_possible_compiles() -> None:
    host = Host(slots=4, processes=4, cores=16)

    def threads(start: StartWorker) -> int:
        found: int = host.only(RunJob, host.tell(WorkerReady(start.worker))).job.compile_threads
        return found

    assert threads(host.only(StartWorker, host.submit("alone"))) == 16
    starts = [host.only(StartWorker, host.submit(key)) for key in ("b", "c", "d")]
    host.submit("queued")
    assert [threads(start) for start in starts] == [4, 4, 4], "each compile gets at least a slot's share"
    fixed = Host(slots=4, cores=16, compile_threads=3)
    start = fixed.only(StartWorker, fixed.submit("a"))
    assert fixed.only(RunJob, fixed.tell(WorkerReady(start.worker))).job.compile_threads == 3


@pytest.mark.reason("start-timeout")
def test_a_start_that_hangs_is_killed() -> None:
    host = Host(start_timeout_s=10)
    host.submit("k")
    host.now += 11
    assert host.only(KillWorker, host.tell(Tick())).reason == "start-timeout"


def test_workers_are_per_user_environment_and_device() -> None:
    host = Host(slots=9, processes=9)
    for values in ({"env": "a"}, {"env": "b"}, {"env": "a", "device": "cuda:X"}, {"env": "a", "uid": 2}):
        host.submit(f"k{values}", **values)
    assert len(host.all(StartWorker)) == 4


def test_a_device_gets_a_worker_only_for_its_first_graph() -> None:
    host = Host(slots=4, processes=4)
    host.submit("k")
    assert {start.device for start in host.all(StartWorker)} == {"cpu"}


@pytest.mark.reason("evicted")
def test_the_least_recently_used_idle_worker_is_evicted() -> None:
    host = Host(processes=2)
    old, new = host.warm("a"), (setattr(host, "now", host.now + 1), host.warm("b"))[1]
    said = host.submit("k", env="c")
    assert host.only(StopWorker, said).worker == old
    assert not [item for item in said if isinstance(item, StartWorker)]
    # The slot of the evicted worker is reserved for the new worker, so no other job may take the slot.
    assert not [item for item in host.submit("k2", env="b") if isinstance(item, RunJob)]
    start = host.only(StartWorker, host.tell(WorkerGone(old, "evicted")))
    assert start.interpreter == interpreter("c")
    assert new in host.scheduler.workers


def test_extra_idle_workers_are_stopped_before_the_last_one() -> None:
    host = Host(slots=2, processes=3, worker_idle_s=900, extra_idle_s=30)
    runs = []
    for key in ("k1", "k2"):
        start = host.only(StartWorker, host.submit(key))
        runs.append(host.only(RunJob, host.tell(WorkerReady(start.worker))))
        host.said.clear()
    for run in runs:
        host.done(run)
    host.now += 31
    host.only(StopWorker, host.tell(Tick()))
    host.now += 900
    host.only(StopWorker, host.tell(Tick()))


@pytest.mark.reason("recycled")
def test_a_worker_is_recycled_after_jobs_per_worker_and_replaced_on_demand() -> None:
    host = Host(jobs_per_worker=3)
    number = host.warm()
    second = host.only(RunJob, host.submit("second"))
    host.submit("third")
    said = host.done(second)
    third = host.only(RunJob, said)
    assert third.worker == number and not host.all(StopWorker), "the worker is not recycled after two jobs"
    host.now += 10_000_000
    host.done(third)
    assert (host.only(StopWorker).worker, host.only(StopWorker).reason) == (number, "recycled")
    assert not host.tell(WorkerGone(number, "recycled")) and not host.scheduler.workers, "no replacement without jobs"
    assert host.only(StartWorker, host.submit("fourth")).worker != number


@pytest.mark.parametrize(("processes", "at_once"), [(3, True), (2, False)])
def test_replacing_a_recycled_worker_evicts_no_other_worker(processes: int, at_once: bool) -> None:
    host = Host(processes=processes, jobs_per_worker=2)
    other, number = host.warm("b"), host.warm("a")
    run = host.only(RunJob, host.submit("k"))
    host.submit("next")
    said = host.done(run)
    assert host.only(StopWorker, said).worker == number
    if not at_once:
        assert not [item for item in said if isinstance(item, StartWorker)], "no process is free yet"
        said = host.tell(WorkerGone(number, "recycled"))
    start = host.only(StartWorker, said)
    assert start.interpreter == interpreter("a") and other in host.scheduler.workers
    assert host.only(RunJob, host.tell(WorkerReady(start.worker))).job.key == "next"


def test_starting_workers_never_exceed_the_slots() -> None:
    host = Host(slots=2, processes=8)
    for number in range(6):
        host.submit(f"k{number}", env=str(number))
    assert len(host.all(StartWorker)) == 2
