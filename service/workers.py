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
    jobs: list[ScheduledJob] = field(default_factory=list)
    since: float = 0.0  # start of the current state
    was_ready: bool = False
    stop_reason: str = ""
    story: list[tuple[float, str]] = field(default_factory=list)

    def job_limit_s(self, limits: Limits) -> float:
        return limits.job_timeout_s

    def take(self, job: ScheduledJob, now: float) -> None:
        self.move("overlap" if self.jobs else "assign", now)
        self.jobs.append(job)
        job.is_lowered = False
        job.beside = False
        if len(self.jobs) > 1:
            for one in self.jobs:
                one.beside = True

    def has_ended(self, job: ScheduledJob, now: float) -> None:
        self.jobs.remove(job)
        if not self.jobs:
            self.move("done", now)

    def find(self, id: str, key: str) -> ScheduledJob | None:
        """The process's job with this id and key."""
        return next((job for job in self.jobs if (job.submit.id, job.submit.key) == (id, key)), None)

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
        """The time at which the process's start or job times out."""
        if self.state == "starting":
            return self.since + limits.start_timeout_s
        if self.state != "busy":
            return math.inf
        return min(job.started for job in self.jobs) + self.job_limit_s(limits)


@dataclass(eq=False)
class Worker(Runner):
    """A process that compiles the jobs of one seat.

    While C++ compilers build the kernels of a job, the worker can lower a second one. The two jobs may end in any
    order.
    """

    outcomes = frozenset({"published", "exists", "failed", "parked"})

    seat: Seat
    interpreter: wire.Interpreter
    _: KW_ONLY
    jobs_done: int = 0
    leaves: str = ""  # the reason for which it takes no further job, and stops once it has none
    is_spare: bool = False  # started when a program imported torch; no graph was traced or submitted since
    makes_room: bool = False  # stopped so that another worker can start; keeps the slot for that worker

    def may_overlap(self, job: ScheduledJob, limits: Limits) -> bool:
        """Whether the worker can take ``job`` while the kernels of its own job are built."""
        if self.state != "busy" or len(self.jobs) != 1 or self.leaves:
            return False
        (own,) = self.jobs
        return (
            own.is_lowered
            and self.seat == job.seat
            and own.submit.store == job.submit.store
            and job.priority <= own.priority < Priority.IDLE
            and not any(one.alone or one.deaths for one in (own, job))
            and self.jobs_done + 1 < limits.jobs_per_worker
        )

    @property
    def is_under_way(self) -> bool:
        """Whether it starts or compiles. A spare worker does not count, and no compile of idle priority, because they
        delay no other job.
        """
        return (self.state == "starting" and not self.is_spare) or (self.state == "busy" and not self.is_idle_priority)

    @property
    def is_idle_priority(self) -> bool:
        return any(job.priority is Priority.IDLE for job in self.jobs)
