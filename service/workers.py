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
    ("busy", "done"): "idle",
    ("starting", "stop"): "stopping",
    ("idle", "stop"): "stopping",
    ("busy", "stop"): "stopping",
}


@dataclass(eq=False)
class Runner:
    """A process that takes one job at a time."""

    outcomes: ClassVar[frozenset[str]]  # the outcomes that it may report (wire.Finished)

    number: int
    _: KW_ONLY
    state: str = "starting"
    job: ScheduledJob | None = None
    since: float = 0.0  # start of the current state
    was_ready: bool = False
    stop_reason: str = ""
    story: list[tuple[float, str]] = field(default_factory=list)

    def job_limit_s(self, limits: Limits) -> float:
        return limits.job_timeout_s

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
        return self.since + self.job_limit_s(limits) if self.state == "busy" else math.inf


@dataclass(eq=False)
class Worker(Runner):
    """A process that compiles the jobs of one seat."""

    outcomes = frozenset({"published", "exists", "failed", "parked"})

    seat: Seat
    interpreter: wire.Interpreter
    _: KW_ONLY
    jobs_done: int = 0
    makes_room: bool = False  # stopped so that another worker can start; keeps the slot for that worker

    @property
    def is_under_way(self) -> bool:
        """Whether it starts or compiles. A compile of idle priority does not count, because it delays no other job."""
        return self.state == "starting" or (self.state == "busy" and not self.is_idle_priority)

    @property
    def is_idle_priority(self) -> bool:
        return self.job is not None and self.job.priority is Priority.IDLE
