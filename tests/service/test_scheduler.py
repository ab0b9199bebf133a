"""The scheduler alone: made-up events, made-up time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from precompiled.service import jobs as module
from precompiled.service.events import (
    Asked,
    Cancelled,
    Count,
    Expected,
    KillWorker,
    Limits,
    Reply,
    RunJob,
    ShutDown,
    StartWorker,
    StopWorker,
    Submitted,
    Tick,
    WorkerDone,
    WorkerGone,
    WorkerReady,
)
from precompiled.service.jobs import Job, SchedulerError
from precompiled.service.scheduler import Scheduler
from precompiled.service.workers import Worker

from precompiled import wire

_ids = itertools.count()


def interpreter(name: str = "a") -> wire.Interpreter:
    return wire.Interpreter(f"/{name}/python", f"/{name}", "3.11", "2.13", "", {"PATH": "/bin"})


class Host:
    """A scheduler, its clock, and what it has said."""

    def __init__(self, **limits: Any) -> None:
        self.scheduler = Scheduler(Limits(**{"slots": 1, "processes": 2, **limits}))
        self.now = 1000.0
        self.said: list[Any] = []

    def tell(self, event: Any) -> list[Any]:
        said = self.scheduler.handle(event, self.now)
        self.said += said
        return said

    def submit(self, key: str, *, uid: int = 1, env: str = "a", blob: bytes = b"graph", **values: Any) -> list[Any]:
        message = wire.Submit(
            id=values.pop("id", f"id{next(_ids)}"),
            key=key,
            store="/store",
            environment=interpreter(env),
            device=values.pop("device", "cpu"),
            **values,
        )
        return self.tell(Submitted(b"client-" + message.id.encode(), uid, uid, message, blob))

    def expect(self, *, uid: int = 1, env: str = "a", device: str = "cpu") -> list[Any]:
        return self.tell(Expected(uid, uid, interpreter(env), device))

    def only(self, kind: type, said: list[Any] | None = None) -> Any:
        found = [item for item in (self.said if said is None else said) if isinstance(item, kind)]
        assert len(found) == 1, found
        return found[0]

    def all(self, kind: type) -> list[Any]:
        return [item for item in self.said if isinstance(item, kind)]

    def warm(self, env: str = "a", uid: int = 1) -> int:
        """Bring a worker of an environment to idle, with a job that is done."""
        said = self.submit(f"warm-{env}-{uid}-{next(_ids)}", env=env, uid=uid)
        number: int = self.only(StartWorker, said).worker
        run = self.only(RunJob, self.tell(WorkerReady(number)))
        self.done(run)
        self.said.clear()
        return number

    def done(self, run: RunJob, outcome: Any = "published", **values: Any) -> list[Any]:
        return self.tell(WorkerDone(run.worker, wire.Finished(run.job.id, run.job.key, outcome, 1.0, **values)))

    def reply(self, said: list[Any]) -> Any:
        return self.only(Reply, said).message

    def counted(self, counter: str) -> float:
        return sum(item.amount for item in self.all(Count) if item.counter == counter)


def test_a_background_job_gives_way_at_first_and_a_waiting_one_never() -> None:
    host = Host(yield_s=4.0, slots=2, processes=4)
    background = host.only(StartWorker, host.submit("a"))
    assert background.yields_until == host.now + 4
    host.now += 3
    waiting = host.only(StartWorker, host.submit("b", env="b", waiting=True))
    assert waiting.yields_until == 0
    runs = [host.only(RunJob, host.tell(WorkerReady(start.worker))) for start in (background, waiting)]
    assert [run.yields_until for run in runs] == [host.now + 1, 0], "counted from the submit"


def test_a_graph_that_is_expected_finds_its_worker_on_its_way() -> None:
    host = Host(yield_s=4.0)
    start = host.only(StartWorker, host.expect())
    assert (start.uid, start.device, start.yields_until) == (1, "cpu", host.now + 4)
    assert not host.expect(), "one is enough for as many as say so"
    host.now += 3
    assert host.reply(host.submit("k")).state == "queued"
    assert host.all(StartWorker) == [start]
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    assert (run.job.key, run.yields_until) == ("k", host.now + 4)


def test_what_is_expected_takes_nothing_from_what_is_there() -> None:
    host = Host(slots=2, processes=2)
    host.submit("k")
    assert not host.expect(env="b"), "a job has the slot that is left for its further ones"
    full = Host(processes=1)
    full.warm("a")
    assert not full.expect(env="b"), "nobody's warm worker leaves for it"
    assert not full.expect(env="a"), "which waits for it already"
    stopping = Host()
    stopping.tell(ShutDown())
    assert not stopping.expect()


def test_an_environment_that_starts_no_worker_is_not_tried_for_what_is_expected() -> None:
    host = Host(start_refused_s=60.0)
    start = host.only(StartWorker, host.expect())
    host.tell(WorkerGone(start.worker, "exit", "no such interpreter"))
    assert not host.expect()
    host.now += 61
    host.tell(Tick())
    assert host.expect()


def test_a_graph_has_all_its_tries_after_a_start_that_nobody_had_asked_for() -> None:
    host = Host()
    for _ in range(3):
        start = host.only(StartWorker, host.expect())
        host.tell(WorkerGone(start.worker, "exit"))
        host.now += 3600
        host.tell(Tick())
    start = host.only(StartWorker, host.submit("k"))
    retried = host.only(StartWorker, host.tell(WorkerGone(start.worker, "exit")))
    assert host.only(Reply, host.tell(WorkerGone(retried.worker, "exit"))).message.code == "worker-cannot-start"


def test_a_worker_that_was_expected_in_vain_leaves_like_any_other() -> None:
    host = Host(worker_idle_s=900.0)
    start = host.only(StartWorker, host.expect())
    host.tell(WorkerReady(start.worker))
    host.now += 901
    assert host.only(StopWorker, host.tell(Tick())).worker == start.worker
    host.tell(WorkerGone(start.worker, "idle"))
    assert not host.expect(), "graphs come to nothing here: not each time anew"
    assert host.only(StartWorker, host.submit("k"))


def test_a_job_goes_its_way() -> None:
    host = Host()
    said = host.submit("k", name="Model")
    start = host.only(StartWorker, said)
    assert host.reply(said).state == "queued"
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    assert (run.job.key, run.job.graph, run.job.attempt, run.job.name) == ("k", b"graph", 1, "Model")
    assert host.reply(host.done(run)).state == "published"
    assert (host.counted("submitted"), host.counted("compiled"), host.counted("compile_s")) == (1, 1, 1.0)
    assert not host.scheduler.jobs
    assert [step.split()[0] for _, step in host.scheduler.finished[0].story] == ["submit", "assign", "publish"]


def test_the_cores_are_shared_by_the_compiles_that_run_or_could() -> None:
    host = Host(slots=4, processes=4, cores=16)

    def threads(start: StartWorker) -> int:
        found: int = host.only(RunJob, host.tell(WorkerReady(start.worker))).job.compile_threads
        return found

    assert threads(host.only(StartWorker, host.submit("alone"))) == 16
    starts = [host.only(StartWorker, host.submit(key)) for key in ("b", "c", "d")]
    host.submit("queued")
    assert [threads(start) for start in starts] == [4, 4, 4], "no slot's share is less"
    fixed = Host(slots=4, cores=16, compile_threads=3)
    start = fixed.only(StartWorker, fixed.submit("a"))
    assert fixed.only(RunJob, fixed.tell(WorkerReady(start.worker))).job.compile_threads == 3


def test_one_flight_per_key_and_user() -> None:
    host = Host()
    host.submit("k")
    said = host.submit("k")
    assert host.reply(said).state == "deduplicated"
    assert not [item for item in said if isinstance(item, StartWorker)]
    host.submit("k", uid=2)
    assert len(host.scheduler.jobs) == 2, "another user's job is another job"
    assert host.counted("deduplicated") == 1


def test_everybody_who_asked_is_told() -> None:
    host = Host()
    host.submit("k", id="one")
    host.submit("k", id="two")
    run = host.only(RunJob, host.tell(WorkerReady(host.only(StartWorker).worker)))
    replies = [item.message for item in host.done(run) if isinstance(item, Reply)]
    assert {(reply.id, reply.state) for reply in replies} == {("one", "published"), ("two", "published")}


def test_the_same_id_again_is_the_same_client() -> None:
    host = Host()
    host.submit("k", id="one")
    assert host.reply(host.submit("k", id="one")).state == "queued"
    assert (host.counted("submitted"), host.counted("deduplicated")) == (1, 0)


def test_a_submit_just_after_the_publication_is_a_job_that_finds_it() -> None:
    host = Host()
    host.warm()
    host.done(host.only(RunJob, host.submit("k")))
    again = host.submit("k")
    assert host.reply(again).state == "running"
    host.done(host.only(RunJob, again), "exists")
    assert (host.counted("compiled"), host.counted("deduplicated"), host.counted("submitted")) == (1, 1, 2)


def test_waiting_clients_go_first() -> None:
    host = Host()
    host.warm()
    busy = host.only(RunJob, host.submit("running"))
    host.submit("background")
    host.submit("urgent", waiting=True)
    assert host.only(RunJob, host.done(busy)).job.key == "urgent"


def test_a_waiting_client_raises_a_background_job() -> None:
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
def test_a_full_queue_says_busy() -> None:
    host = Host(max_queue=3, max_queue_per_uid=2)
    for key in ("a", "b"):
        host.submit(key)
    reply = host.reply(host.submit("c"))
    assert isinstance(reply, wire.Busy)
    assert 0 < reply.retry_after_s <= 60
    assert host.reply(host.submit("a")).state == "deduplicated", "joining needs no room"
    assert isinstance(host.reply(host.submit("d", uid=2)), wire.Accepted)
    assert isinstance(host.reply(host.submit("e", uid=2)), wire.Busy), "user 1 has no more than he would have"
    assert [item.reason for item in host.all(Count) if item.counter == "rejected"] == ["busy"] * 2


def test_the_bytes_of_queued_graphs_are_bounded() -> None:
    host = Host(max_queue_bytes=100)
    assert isinstance(host.reply(host.submit("a", blob=b"x" * 500)), wire.Accepted), "alone, any size goes"
    assert isinstance(host.reply(host.submit("b", blob=b"x")), wire.Busy)


@pytest.mark.reason("died")
def test_a_job_is_retried_once_when_its_worker_dies_then_quarantined() -> None:
    host = Host()
    host.warm()
    run = host.only(RunJob, host.submit("k"))
    start = host.only(StartWorker, host.tell(WorkerGone(run.worker, "died", "SIGKILL")))
    run = host.only(RunJob, host.tell(WorkerReady(start.worker)))
    assert run.job.attempt == 2
    assert host.reply(host.tell(WorkerGone(run.worker, "died", "SIGKILL"))).code == "key-quarantined"
    assert host.reply(host.submit("k")).code == "key-quarantined"
    assert isinstance(host.reply(host.submit("k", uid=2)), wire.Accepted), "another user's key is another key"
    host.now += 3600
    host.tell(Tick())
    assert isinstance(host.reply(host.submit("k")), wire.Accepted)
    assert (host.counted("retried"), host.counted("failed")) == (1, 1)


@pytest.mark.reason("timeout")
def test_a_job_that_takes_too_long_is_killed_and_not_tried_again() -> None:
    host = Host(job_timeout_s=100)
    host.warm()
    run = host.only(RunJob, host.submit("k"))
    host.now += 101
    assert host.only(KillWorker, host.tell(Tick())).reason == "timeout"
    host.tell(WorkerDone(run.worker, wire.Finished(run.job.id, "k", "published", 1.0)))  # too late: ignored
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
def test_what_the_store_does_not_take_is_said_to_be_that(code: str) -> None:
    """A worker cannot leave a record of it there."""
    host = Host()
    host.warm()
    run = host.only(RunJob, host.submit("k"))
    reply = host.reply(host.done(run, "failed", reason=code, message="/x cannot be used. Make it usable"))
    assert (reply.code, reply.message) == (code, "/x cannot be used. Make it usable")


@pytest.mark.reason("device-lost")
def test_a_worker_that_has_lost_its_gpu_leaves_and_the_graph_is_not_blamed() -> None:
    host = Host()
    number = host.warm()
    run = host.only(RunJob, host.submit("k"))
    host.submit("next")
    said = host.done(run, "failed", reason="device-lost", message="unspecified launch failure")
    assert host.reply(said).code == "device-lost"
    stopped = host.only(StopWorker, said)
    assert (stopped.worker, stopped.reason) == (number, "device-lost")
    assert not [order for order in said if isinstance(order, RunJob)], "it gets no other job"
    other = host.only(StartWorker, said).worker
    host.tell(WorkerGone(number, "device-lost"))
    run = host.only(RunJob, host.tell(WorkerReady(other)))
    assert run.job.key == "next"
    host.done(run)
    assert host.only(RunJob, host.submit("k")).job.key == "k", "the key is not quarantined"


@pytest.mark.reason("gpu-unavailable")
def test_a_worker_that_found_no_room_on_its_gpu_stays_and_the_graph_is_not_blamed() -> None:
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
    # The next one has the slot at once; the parked one is asked for again later, at its old place.
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


def test_an_environment_that_cannot_start_fails_its_jobs_and_is_refused_for_a_while() -> None:
    host = Host()
    first = host.only(StartWorker, host.submit("k"))
    second = host.only(StartWorker, host.tell(WorkerGone(first.worker, "died", "no torch")))
    reply = host.reply(host.tell(WorkerGone(second.worker, "died", "no torch")))
    assert reply.code == "worker-cannot-start" and "no torch" in reply.message
    assert host.reply(host.submit("k2")).code == "worker-cannot-start"
    assert isinstance(host.reply(host.submit("k3", env="b")), wire.Accepted)
    host.now += 61
    assert isinstance(host.reply(host.submit("k4")), wire.Accepted)


@pytest.mark.reason("start-timeout")
def test_a_start_that_hangs_is_ended() -> None:
    host = Host(start_timeout_s=10)
    host.submit("k")
    host.now += 11
    assert host.only(KillWorker, host.tell(Tick())).reason == "start-timeout"


def test_workers_are_per_user_environment_and_device() -> None:
    host = Host(slots=9, processes=9)
    for values in ({"env": "a"}, {"env": "b"}, {"env": "a", "device": "cuda:X"}, {"env": "a", "uid": 2}):
        host.submit(f"k{values}", **values)
    assert len(host.all(StartWorker)) == 4


def test_a_device_gets_its_worker_when_its_first_graph_comes() -> None:
    host = Host(slots=4, processes=4)
    host.submit("k")
    assert {start.device for start in host.all(StartWorker)} == {"cpu"}


@pytest.mark.reason("evicted")
def test_the_least_recently_used_idle_worker_makes_room() -> None:
    host = Host(processes=2)
    old, new = host.warm("a"), (setattr(host, "now", host.now + 1), host.warm("b"))[1]
    said = host.submit("k", env="c")
    assert host.only(StopWorker, said).worker == old
    assert not [item for item in said if isinstance(item, StartWorker)]
    # Its slot is kept for the newcomer: a job that could run at once does not slip in.
    assert not [item for item in host.submit("k2", env="b") if isinstance(item, RunJob)]
    start = host.only(StartWorker, host.tell(WorkerGone(old, "evicted")))
    assert start.interpreter == interpreter("c")
    assert new in host.scheduler.workers


def test_idle_workers_are_released() -> None:
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
def test_a_worker_is_recycled_after_its_last_job_and_replaced_when_there_is_work() -> None:
    host = Host(jobs_per_worker=3)
    number = host.warm()
    second = host.only(RunJob, host.submit("second"))
    host.submit("third")
    said = host.done(second)
    third = host.only(RunJob, said)
    assert third.worker == number and not host.all(StopWorker), "two jobs are not three"
    host.now += 10_000_000
    host.done(third)
    assert (host.only(StopWorker).worker, host.only(StopWorker).reason) == (number, "recycled")
    assert not host.tell(WorkerGone(number, "recycled")) and not host.scheduler.workers, "without work, no successor"
    assert host.only(StartWorker, host.submit("fourth")).worker != number


@pytest.mark.parametrize(("processes", "at_once"), [(3, True), (2, False)])
def test_a_recycled_worker_costs_no_other_environment_its_own(processes: int, at_once: bool) -> None:
    host = Host(processes=processes, jobs_per_worker=2)
    other, number = host.warm("b"), host.warm("a")
    run = host.only(RunJob, host.submit("k"))
    host.submit("next")
    said = host.done(run)
    assert host.only(StopWorker, said).worker == number
    if not at_once:
        assert not [item for item in said if isinstance(item, StartWorker)], "there is no place for it yet"
        said = host.tell(WorkerGone(number, "recycled"))
    start = host.only(StartWorker, said)
    assert start.interpreter == interpreter("a") and other in host.scheduler.workers
    assert host.only(RunJob, host.tell(WorkerReady(start.worker))).job.key == "next"


def test_never_more_slots_than_allowed() -> None:
    host = Host(slots=2, processes=8)
    for number in range(6):
        host.submit(f"k{number}", env=str(number))
    assert len(host.all(StartWorker)) == 2


@pytest.mark.reason("shut-down")
def test_shut_down_tells_everybody() -> None:
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


@pytest.mark.reason("protocol")
def test_a_worker_that_answers_for_another_job_is_killed() -> None:
    host = Host()
    host.warm()
    run = host.only(RunJob, host.submit("k"))
    said = host.tell(WorkerDone(run.worker, wire.Finished("other", "other", "published", 1.0)))
    assert host.only(KillWorker, said).reason == "protocol"
    host.only(StartWorker, host.tell(WorkerGone(run.worker, "protocol")))


def test_events_of_unknown_workers_are_nothing() -> None:
    host = Host()
    for event in (WorkerReady(99), WorkerGone(99, "died"), WorkerDone(99, wire.Finished("i", "k", "failed", 0.0))):
        assert host.tell(event) == []


def _job(state: str) -> Job:
    message = wire.Submit("i", "k", "/s", interpreter(), "cpu")
    return Job(1, 1, 1, message, b"", module.Seat.of(1, "cpu", interpreter()), False, state=state)


TRIGGERS = sorted({trigger for _, trigger in module.JOB_MOVES})
STATES = ("queued", "running", "published", "failed", "quarantined", "dropped")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_the_table_of_transitions_is_all_there_is(state: str, trigger: str) -> None:
    job = _job(state)
    job.story.append((1.0, "submit"))
    if (state, trigger) in module.JOB_MOVES:
        job.move(trigger, 2.0)
        assert job.state == module.JOB_MOVES[state, trigger]
    else:
        with pytest.raises(SchedulerError) as caught:
            job.move(trigger, 2.0)
        assert caught.value.story == [(1.0, "submit"), (2.0, trigger)], "the error tells the story"


@pytest.mark.reason("scheduler")
def test_a_wrong_worker_transition_is_an_error_with_its_story() -> None:
    worker = Worker(1, module.Seat.of(1, "cpu", interpreter()), interpreter())
    with pytest.raises(SchedulerError, match="cannot done when it is starting") as caught:
        worker.move("done", 1.0)
    assert caught.value.code == "scheduler"


def test_a_queued_job_is_dropped_when_nobody_wants_it_any_more() -> None:
    host = Host()
    host.warm()
    host.submit("running", id="r")
    host.submit("queued", id="q")
    said = host.tell(Cancelled(1, ("q",)))
    assert {job.submit.key for job in host.scheduler.jobs.values()} == {"running"}
    assert not [item for item in said if isinstance(item, (KillWorker, Reply))]
    assert host.scheduler.finished[-1].state == "dropped"


@pytest.mark.reason("cancelled")
def test_a_running_job_is_ended_with_its_worker_and_the_next_one_gets_its_place() -> None:
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
    assert host.counted("failed") == 0, "neither is it quarantined"
    host.done(run)
    host.submit("old", id="again")
    assert host.all(RunJob)[-1].job.key == "old"


def test_a_job_that_is_cancelled_while_its_worker_is_killed_for_its_time() -> None:
    """Its next submit is a job of its own, and runs: found by AnyHistory."""
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


def test_a_job_that_somebody_else_waits_for_is_not_cancelled() -> None:
    host = Host()
    host.warm()
    host.submit("k", id="watch")
    host.submit("k", id="client")
    assert not [item for item in host.tell(Cancelled(1, ("watch",))) if isinstance(item, KillWorker)]
    (job,) = host.scheduler.jobs.values()
    assert set(job.interested) == {"client"}
    host.tell(Cancelled(2, ("client",)))
    assert host.scheduler.jobs, "another user's word counts for his own jobs"


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens in whatever order: no key runs twice, no job is lost, no bound is passed."""

    workers = Bundle("workers")

    @initialize(slots=st.integers(1, 3), extra=st.integers(0, 2), queue=st.integers(1, 6), jobs=st.integers(1, 5))
    def begin(self, slots: int, extra: int, queue: int, jobs: int) -> None:
        self.limits = Limits(
            slots=slots,
            processes=slots + extra,
            max_queue=queue,
            max_queue_per_uid=max(1, queue - 1),
            job_timeout_s=100,
            start_timeout_s=50,
            worker_idle_s=80,
            extra_idle_s=20,
            age_s=30,
            quarantine_s=200,
            jobs_per_worker=jobs,
        )
        self.scheduler = Scheduler(self.limits)
        self.now = 0.0
        self.number = 0
        self.starting: set[int] = set()
        self.running: dict[int, wire.Job] = {}
        self.flights: dict[int, tuple[int, str]] = {}
        self.processes: set[int] = set()
        self.uid_of: dict[int, int] = {}
        self.doomed: set[int] = set()
        self.open: set[str] = set()  # ids that were accepted and not yet ended
        self.uid_of_id: dict[str, int] = {}

    def carry_out(self, event: Any) -> None:
        for item in self.scheduler.handle(event, self.now):
            match item:
                case StartWorker(worker, uid):
                    self.starting.add(worker)
                    self.processes.add(worker)
                    self.uid_of[worker] = uid
                case RunJob(worker, job):
                    assert worker not in self.running and worker in self.processes and worker not in self.starting
                    flight = (self.uid_of[worker], job.key)
                    assert flight not in self.flights.values(), "two running jobs for one key"
                    self.running[worker] = job
                    self.flights[worker] = flight
                case StopWorker(worker) | KillWorker(worker):
                    assert worker in self.processes
                    self.doomed.add(worker)
                    if isinstance(item, KillWorker):
                        self.flights.pop(worker, None)  # killed before anything else is carried out (pool.py)
                        if item.reason in ("cancelled", "displaced"):
                            self.running.pop(worker, None)
                case Reply(_, wire.Accepted(id=id, state=state)):
                    if state == "published":
                        assert id in self.open
                        self.open.discard(id)
                    else:
                        self.open.add(id)
                case Reply(_, wire.Rejected(id=id) | wire.Busy(id=id)):
                    self.open.discard(id)

    @rule(
        key=st.sampled_from("abcdefgh"),
        uid=st.integers(1, 3),
        env=st.sampled_from("xy"),
        waiting=st.booleans(),
        farm=st.booleans(),
    )
    def submit(self, key: str, uid: int, env: str, waiting: bool, farm: bool) -> None:
        self.number += 1
        message = wire.Submit(f"i{self.number}", key, "/s", interpreter(env), "cpu", waiting=waiting, farm=farm)
        self.uid_of_id[message.id] = uid
        self.carry_out(Submitted(b"c", uid, uid, message, b"g"))

    @rule(uid=st.integers(1, 3), env=st.sampled_from("xy"))
    def expect(self, uid: int, env: str) -> None:
        self.carry_out(Expected(uid, uid, interpreter(env), "cpu"))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.open)), unique=True))
        uid = data.draw(st.integers(1, 3))
        self.open -= {id for id in ids if self.uid_of_id[id] == uid}
        self.carry_out(Cancelled(uid, tuple(ids)))

    @rule(keys=st.lists(st.sampled_from("abcdefgh"), unique=True), uid=st.sampled_from([1, 2, 3, None]))
    def give_up(self, keys: list[str], uid: int | None) -> None:
        self.carry_out(Asked(b"c", uid, wire.GiveUp(keys)))
        assert not [flight for flight in self.scheduler.jobs if flight[2] in keys and uid in (None, flight[0])]

    @rule(keys=st.lists(st.sampled_from("abcdefgh"), unique=True), uid=st.sampled_from([1, 2, 3, None]))
    def retry(self, keys: list[str], uid: int | None) -> None:
        self.carry_out(Asked(b"c", uid, wire.Retry(keys)))

    @precondition(lambda self: self.starting)
    @rule(data=st.data())
    def ready(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.starting)))
        self.starting.discard(worker)
        self.carry_out(WorkerReady(worker))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from(["published", "exists", "failed", "parked", "kept"]))
    def finish(self, data: st.DataObject, outcome: Any) -> None:
        worker = data.draw(st.sampled_from(sorted(self.running)))
        job = self.running.pop(worker)
        self.flights.pop(worker, None)  # it may have said so before it was killed
        self.carry_out(WorkerDone(worker, wire.Finished(job.id, job.key, outcome, 1.0)))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self._gone(data.draw(st.sampled_from(sorted(self.processes))))

    def _gone(self, worker: int) -> None:
        self.processes.discard(worker)
        self.starting.discard(worker)
        self.doomed.discard(worker)
        self.running.pop(worker, None)
        self.flights.pop(worker, None)
        self.carry_out(WorkerGone(worker, "died"))

    @rule(seconds=st.sampled_from([0.1, 5.0, 25.0, 60.0, 120.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.carry_out(Tick())
        wake = self.scheduler.next_wake(self.now)
        assert wake is None or wake >= 0

    @invariant()
    def bounds_are_kept(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler, limits = self.scheduler, self.limits
        couriers = list(scheduler.couriers)
        assert len({courier.post for courier in couriers}) == len(couriers)
        # A job whose worker died, or that nobody took, comes back although the queue is full: one per slot or courier.
        assert scheduler.queue_depth <= limits.max_queue + limits.slots + 6  # couriers: 3 users, 2 interpreters
        assert len(self.processes) - len(couriers) <= limits.processes
        working = [w for w in scheduler.workers.values() if w.state in ("starting", "busy")]
        users = {worker.seat.uid for worker in working}
        assert len(working) <= limits.slots + len(users) - 1 or len(working) <= limits.slots, "one more for each user"
        assert {*scheduler.workers, *(courier.number for courier in couriers)} == self.processes
        interested = {id for job in scheduler.jobs.values() for id in job.interested}
        assert interested == self.open, "an accepted submit is a job's, until it has ended"
        queued = [job for job in scheduler.jobs.values() if job.state == "queued"]
        assert len(queued) == scheduler.queue_depth

    def teardown(self) -> None:
        """From any state, when workers do their work, every job ends."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(1000):
            if not self.scheduler.jobs:
                break
            for worker in sorted(self.doomed):
                self._gone(worker)
            for worker in sorted(self.starting):
                self.starting.discard(worker)
                self.carry_out(WorkerReady(worker))
            for worker in sorted(self.running):
                job = self.running.pop(worker)
                self.flights.pop(worker, None)
                self.carry_out(WorkerDone(worker, wire.Finished(job.id, job.key, "published", 1.0)))
            if not (self.doomed or self.starting or self.running):  # what is parked comes by itself, in its time
                self.now += self.scheduler.next_wake(self.now) or 0.0
                self.carry_out(Tick())
        assert not self.scheduler.jobs, "lost jobs"
        assert not self.open


AnyHistory.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
test_any_history = AnyHistory.TestCase


def asked(host: Host, message: wire.GiveUp | wire.Retry, uid: int | None = 1) -> list[str]:
    """The keys that the answer names."""
    (reply,) = [item for item in host.tell(Asked(b"cli", uid, message))
                if isinstance(item, Reply) and item.client == b"cli"]  # fmt: skip
    assert isinstance(reply.message, wire.Changed)
    return reply.message.keys


@pytest.mark.reason("job-cancelled")
def test_a_user_gives_up_jobs_by_the_beginnings_of_their_keys_and_all_who_asked_are_told() -> None:
    host = Host()
    worker = host.warm()
    host.submit("ab12-running", id="r")
    host.submit("ab12-queued", id="q")
    host.submit("cd34", id="other")
    assert asked(host, wire.GiveUp(["ab12", "nothing"])) == ["ab12-queued", "ab12-running"]
    refusals = {item.message.id: item.message.code for item in host.said
                if isinstance(item, Reply) and isinstance(item.message, wire.Rejected)}  # fmt: skip
    assert refusals == {"r": "job-cancelled", "q": "job-cancelled"}
    assert host.all(KillWorker) == [KillWorker(worker, "cancelled")]
    assert {job.submit.key for job in host.scheduler.jobs.values()} == {"cd34"}
    host.tell(WorkerGone(worker, "cancelled"))
    assert asked(host, wire.GiveUp(["cd34"]), uid=2) == [], "another user's word counts for his own jobs"
    assert asked(host, wire.GiveUp(["cd34"]), uid=None) == ["cd34"], "and root's for all"
    host.submit("ab12-running", id="again")
    assert host.scheduler.jobs, "it is not held against the key"


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
