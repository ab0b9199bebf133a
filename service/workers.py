"""What the scheduler keeps of a process that takes jobs: its state, and which step leads from one state to the next.

`service/scheduler.py` draws the table. A ``Worker`` compiles; ``Runner`` is what it shares with a courier.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from precompiled.service.events import KillWorker, Limits, StopWorker
from precompiled.service.jobs import Job, SchedulerError, Seat

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

    outcomes: ClassVar[frozenset[str]]  # that it may name for its job (wire.Finished)

    number: int
    _: KW_ONLY
    state: str = "starting"
    job: Job | None = None
    since: float = 0.0  # when its state began
    was_ready: bool = False
    stop_reason: str = ""
    story: list[tuple[float, str]] = field(default_factory=list)

    def job_limit_s(self, limits: Limits) -> float:
        """How long it may have one job."""
        return limits.job_timeout_s

    def move(self, trigger: str, now: float) -> None:
        """Follow one edge of the table; raises SchedulerError where there is none."""
        self.story = [*self.story[-20:], (now, trigger)]
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
        """When its start or its job has taken too long."""
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
    makes_room: bool = False  # it was told to leave so that another may start, for which it holds a slot
