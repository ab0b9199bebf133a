"""A job's data in the scheduler, and the table of its states.

`service/scheduler.py` draws the table. A job records its steps as its story, which an error message shows.
"""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass, field

from precompiled.service.events import Moved

from precompiled import wire
from precompiled.core.errors import PrecompiledError

JOB_MOVES = {
    ("queued", "assign"): "running",
    ("queued", "refuse"): "failed",
    ("queued", "cancel"): "dropped",
    ("queued", "displace"): "dropped",
    ("queued", "shut-down"): "dropped",
    ("running", "park"): "queued",
    ("running", "publish"): "published",
    ("running", "fail"): "failed",
    ("running", "lose-worker"): "queued",
    ("running", "displace"): "queued",
    ("running", "quarantine"): "quarantined",
    ("running", "cancel"): "dropped",
    ("running", "shut-down"): "dropped",
}


MAX_STEPS, MAX_STEP_CHARS = 20, 200  # of a story: a job may be parked and queued again without end


class SchedulerError(PrecompiledError):
    """A transition that is missing in the tables. ``story``: the steps before it."""

    code = "scheduler"

    def __init__(self, message: str, story: list[tuple[float, str]]) -> None:
        super().__init__(message + "; story: " + ", ".join(f"{at:.3f} {step}" for at, step in story))
        self.story = story


class Priority(enum.IntEnum):
    """A job's priority; a lower number is served first."""

    WAITING = 0  # a client waits for the artifact
    BACKGROUND = 1  # the client runs eager code meanwhile
    IDLE = 2  # the client runs compiled code meanwhile

    @classmethod
    def of(cls, submit: wire.Submit) -> Priority:
        return cls.WAITING if submit.waiting else cls.IDLE if submit.idle else cls.BACKGROUND


Flight = tuple[int, str, str]  # uid, store, key


@dataclass(frozen=True)
class Seat:
    """The user, device and interpreter that a job needs. Workers of one seat are interchangeable."""

    uid: int
    device: str
    interpreter: bytes  # a digest of all fields of wire.Interpreter, which may be a megabyte

    @classmethod
    def of(cls, uid: int, device: str, interpreter: wire.Interpreter) -> Seat:
        return cls(uid, device, hashlib.sha256(wire.interpreter_bytes(interpreter)).digest())


@dataclass(eq=False)
class ScheduledJob:
    """One compile, from its first submit to its end."""

    sequence: int
    uid: int
    gid: int
    submit: wire.Submit  # the job's first submit
    blob: bytes
    seat: Seat
    priority: Priority
    interested: dict[str, bytes] = field(default_factory=dict)  # maps the id of a submit to its client
    state: str = "queued"
    worker: int | None = None
    size: int = 0  # its bytes in the queue
    deaths: int = 0  # workers that died while they ran it
    is_lowered: bool = False  # whether its worker only waits for C++ compilers
    beside: bool = False  # whether its worker had another job during this attempt
    alone: bool = False  # whether it must run alone, because its worker has died during such an attempt
    unread: int = 0  # workers that died before they had read the job
    displaced: int = 0  # how often it was stopped for another user's job
    attempt: int = 0
    since: float = 0.0  # when it was first queued
    parked_until: float = 0.0  # no worker gets the job before this time, because another host or the farm compiles it
    kept_until: float = 0.0  # no courier gets the job before this time, because the farm did not accept it
    started: float = 0.0
    story: list[tuple[float, str]] = field(default_factory=list)

    @property
    def flight(self) -> Flight:
        return (self.uid, self.submit.store, self.submit.key)

    @property
    def order(self) -> tuple[int, int]:
        return (self.priority, self.sequence)

    def note_step(self, step: str, now: float) -> None:
        self.story = [*self.story[1 - MAX_STEPS :], (now, step[:MAX_STEP_CHARS])]

    def move(self, trigger: str, now: float, why: str = "") -> Moved:
        """Follow an edge of the table. Raises SchedulerError if the table has no such edge."""
        self.note_step(f"{trigger} ({why})" if why else trigger, now)
        state = JOB_MOVES.get((self.state, trigger))
        if state is None:
            raise SchedulerError(
                f"job {self.submit.id} of key {self.submit.key} cannot {trigger} when it is {self.state}", self.story
            )
        self.state = state
        return Moved(self.submit.id, self.submit.key, self.uid, state, why, tuple(self.interested))
