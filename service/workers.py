"""The scheduler's data of a process that runs jobs, and the table of its states.

`service/scheduler.py` draws the table. ``Worker`` compiles; ``Runner`` is the base class that it shares with Courier.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from precompiled.service.events import KillWorker, Limits, StopWorker
from precompiled.service.job_states import MAX_STEPS, Priority, ScheduledJob, SchedulerError, Seat

from precompiled import wire

RUNNER_MOVES = {
    ("starting", "ready"): "idle",
    ("idle", "assign"): "busy",
    ("busy", "overlap"): "busy",
    ("busy", "done"): "idle",
    ("starting", "stop"): "stopping",
    ("idle", "stop"): "stopping",
    ("busy", "stop"): "stopping",
}


@dataclass(eq=False)
class Runner:
    """A process that runs jobs. A courier has one job at a time."""

    outcomes: ClassVar[frozenset[str]]  # the outcomes that it may report (wire.Finished)

    number: int
    _: KW_ONLY
    state: str = "starting"
    job: ScheduledJob | None = None
    since: float = 0.0  # start of the current state
    was_ready: bool = False
    stop_reason: str = ""
    story: list[tuple[float, str]] = field(default_factory=list)

    @property
    def jobs(self) -> list[ScheduledJob]:
        """Its jobs, in the order in which they must end."""
        return [self.job] if self.job is not None else []

    def job_limit_s(self, limits: Limits) -> float:
        return limits.job_timeout_s

    def take(self, job: ScheduledJob, now: float) -> None:
        self.job, job.beside = job, False
        self.move("assign", now)

    def give_back(self, job: ScheduledJob, now: float) -> None:
        """End its first job."""
        self.drop(job)
        if not self.jobs:
            self.move("done", now)

    def drop(self, job: ScheduledJob) -> None:
        """Forget a job, of a process that is being ended."""
        assert job is self.job
        self.job = None

    def move(self, trigger: str, now: float) -> None:
        """Follow an edge of the table. Raises SchedulerError if the table has no such edge."""
        self.story = [*self.story[1 - MAX_STEPS :], (now, trigger)]
        state = RUNNER_MOVES.get((self.state, trigger))
        if state is None:
            raise SchedulerError(f"worker {self.number} cannot {trigger} when it is {self.state}", self.story)
        self.state = state
        self.since = now
        self.was_ready = self.was_ready or trigger == "ready"

    def stop(self, reason: str, now: float) -> StopWorker:
        self.move("stop", now)
        self.stop_reason = reason
        return StopWorker(self.number, reason)

    def kill(self, reason: str, now: float) -> KillWorker:
        self.move("stop", now)
        self.stop_reason = reason
        return KillWorker(self.number, reason)

    def kill_at(self, limits: Limits) -> float:
        """The time at which its start or its job times out."""
        if self.state == "starting":
            return self.since + limits.start_timeout_s
        if self.state != "busy":
            return math.inf
        return min(job.started for job in self.jobs) + self.job_limit_s(limits)


@dataclass(eq=False)
class Worker(Runner):
    """A process that compiles the jobs of one seat.

    While C++ compilers build the kernels of a job, the worker can lower the next one. ``building`` is the earlier job
    then, and ``job`` the later one.
    """

    outcomes = frozenset({"published", "exists", "failed", "parked"})

    seat: Seat
    interpreter: wire.Interpreter
    _: KW_ONLY
    building: ScheduledJob | None = None
    is_lowered: bool = False  # whether only compilers run for ``job``
    jobs_done: int = 0
    makes_room: bool = False  # stopped so that another worker can start; keeps the slot for that worker

    @property
    def jobs(self) -> list[ScheduledJob]:
        return [job for job in (self.building, self.job) if job is not None]

    def may_overlap(self, job: ScheduledJob, limits: Limits) -> bool:
        """Whether it can take ``job`` while its own job's kernels are built."""
        own = self.job
        return (
            own is not None
            and self.state == "busy"
            and self.is_lowered
            and self.building is None
            and self.seat == job.seat
            and own.submit.store == job.submit.store
            and job.priority <= own.priority < Priority.IDLE
            and not any(one.alone or one.deaths for one in (own, job))
            and self.jobs_done + 1 < limits.jobs_per_worker
        )

    def take(self, job: ScheduledJob, now: float) -> None:
        if self.job is None:
            super().take(job, now)
        else:
            self.building, self.job = self.job, job
            self.building.beside = self.job.beside = True
            self.move("overlap", now)
        self.is_lowered = False

    def drop(self, job: ScheduledJob) -> None:
        if job is self.building:
            self.building = None
        else:
            super().drop(job)

    @property
    def is_under_way(self) -> bool:
        """Whether it starts or compiles. A compile of idle priority does not count, because it delays no other job."""
        return self.state == "starting" or (self.state == "busy" and not self.is_idle_priority)

    @property
    def is_idle_priority(self) -> bool:
        return self.job is not None and self.job.priority is Priority.IDLE
