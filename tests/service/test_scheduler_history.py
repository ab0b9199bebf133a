"""Tests that the scheduler keeps its invariants in random histories of events."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from precompiled.service.events import (
    Asked,
    Cancelled,
    Expected,
    KillWorker,
    Limits,
    Reply,
    RunJob,
    StartWorker,
    StopWorker,
    Submitted,
    Tick,
    WorkerDone,
    WorkerGone,
    WorkerLowered,
    WorkerReady,
)
from precompiled.service.scheduler import Scheduler
from support_scheduler import interpreter

from precompiled import wire


class AnyHistory(RuleBasedStateMachine):
    """In any order of events, no key runs twice at a time, no job is lost, and no limit is exceeded."""

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
        self.running: dict[int, list[wire.Job]] = {}  # the jobs of each worker
        self.lowered: set[int] = set()
        self.flights: dict[int, list[tuple[int, str]]] = {}  # of the workers that are not killed
        self.processes: set[int] = set()
        self.uid_of: dict[int, int] = {}
        self.doomed: set[int] = set()
        self.open: set[str] = set()  # ids of accepted submits that have not ended
        self.uid_of_id: dict[str, int] = {}

    def carry_out(self, event: Any) -> None:
        for item in self.scheduler.handle(event, self.now):
            match item:
                case StartWorker(worker, uid):
                    self.starting.add(worker)
                    self.processes.add(worker)
                    self.uid_of[worker] = uid
                case RunJob(worker, job):
                    assert worker in self.processes and worker not in self.starting
                    assert worker not in self.running or (worker in self.lowered and len(self.running[worker]) == 1)
                    flight = (self.uid_of[worker], job.key)
                    assert all(flight not in known for known in self.flights.values()), "two running jobs have one key"
                    self.running.setdefault(worker, []).append(job)
                    self.flights.setdefault(worker, []).append(flight)
                    self.lowered.discard(worker)
                case StopWorker(worker) | KillWorker(worker):
                    assert worker in self.processes
                    self.doomed.add(worker)
                    if isinstance(item, KillWorker):
                        # The pool kills the worker before it carries out the scheduler's next instruction.
                        self.flights.pop(worker, None)
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
        idle=st.booleans(),
        farm=st.booleans(),
    )
    def submit(self, key: str, uid: int, env: str, waiting: bool, idle: bool, farm: bool) -> None:
        self.number += 1
        message = wire.Submit(
            f"i{self.number}", key, "/s", interpreter(env), "cpu", waiting=waiting, idle=idle, farm=farm
        )
        self.uid_of_id[message.id] = uid
        self.carry_out(Submitted(b"c", uid, uid, message, b"g"))

    @rule(uid=st.integers(1, 3), env=st.sampled_from("xy"), tracing=st.booleans())
    def expect(self, uid: int, env: str, tracing: bool) -> None:
        self.carry_out(Expected(uid, uid, interpreter(env), "cpu", tracing=tracing))

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
        self._done(worker, outcome, data.draw(st.sampled_from(range(len(self.running[worker])))))

    def _done(self, worker: int, outcome: Any, number: int = 0) -> None:
        job = self.running[worker].pop(number)
        if not self.running[worker]:
            del self.running[worker]
            self.lowered.discard(worker)
        # The flights may be absent: the worker may have sent its outcome before it was killed.
        self.flights[worker] = [flight for flight in self.flights.pop(worker, []) if flight[1] != job.key]
        self.carry_out(WorkerDone(worker, wire.Finished(job.id, job.key, outcome, 1.0)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def lower(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.running)))
        job = self.running[worker][-1]
        self.lowered.add(worker)
        self.carry_out(WorkerLowered(worker, wire.Lowered(job.id, job.key)))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self._gone(data.draw(st.sampled_from(sorted(self.processes))))

    def _gone(self, worker: int) -> None:
        self.processes.discard(worker)
        self.starting.discard(worker)
        self.doomed.discard(worker)
        self.lowered.discard(worker)
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
        # If a worker dies or the farm rejects a job, the job is queued again even if the queue is full. The queue may
        # therefore exceed its limit by two jobs per slot and one per courier. There are at most 6 couriers: 3 users
        # with 2 interpreters each.
        assert scheduler.queue_depth <= limits.max_queue + 2 * limits.slots + 6
        assert len(self.processes) - len(couriers) <= limits.processes
        working = [worker for worker in scheduler.workers.values() if worker.is_under_way]
        assert sum(worker.is_idle_priority for worker in scheduler.workers.values()) <= limits.slots
        users = {worker.seat.uid for worker in working}
        assert len(working) <= limits.slots + len(users) - 1 or len(working) <= limits.slots, "one more per user"
        assert {*scheduler.workers, *(courier.number for courier in couriers)} == self.processes
        interested = {id for job in scheduler.jobs.values() for id in job.interested}
        assert interested == self.open, "each accepted submit belongs to a job until it ends"
        queued = [job for job in scheduler.jobs.values() if job.state == "queued"]
        assert len(queued) == scheduler.queue_depth

    def teardown(self) -> None:
        """From any state, all jobs must end if the workers finish their jobs."""
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
                self._done(worker, "published")
            # Only parked jobs are left, so advance the clock to their next attempt.
            if not (self.doomed or self.starting or self.running):
                self.now += self.scheduler.next_wake(self.now) or 0.0
                self.carry_out(Tick())
        assert not self.scheduler.jobs, "lost jobs"
        assert not self.open


AnyHistory.TestCase.settings = settings(max_examples=30, stateful_step_count=60)
test_any_history = AnyHistory.TestCase
