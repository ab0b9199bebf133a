"""The queued jobs of all users: how many there may be, and who is next."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator

from precompiled.service.events import Limits
from precompiled.service.jobs import Job


class JobQueue:
    """Jobs of waiting clients come before background ones, the users by turns, each user's in their order."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._jobs: dict[int, list[Job]] = {}  # uid -> its jobs, in their order; no empty lists
        self._turn: list[int] = []  # the uids of _jobs; the first is served next
        self._bytes: Counter[int] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def __iter__(self) -> Iterator[Job]:
        """In the order in which they are served."""
        for waiting in (True, False):
            lanes = [[job for job in self._jobs[uid] if job.waiting is waiting] for uid in self._turn]
            for depth in range(max(map(len, lanes), default=0)):
                for lane in lanes:
                    if depth < len(lane):
                        yield lane[depth]

    def ready(self, now: float) -> Iterator[Job]:
        """Those that are not parked, in the order in which they are served."""
        return (job for job in self if job.parked_until <= now)

    def of(self, uid: int) -> list[Job]:
        """A user's jobs, in their order."""
        return list(self._jobs.get(uid, ()))

    def is_full(self, uid: int, size: int) -> bool:
        """Whether a user's job with a graph of ``size`` bytes has no place now."""
        limits, held = self._limits, self._bytes
        if len(self) >= limits.max_queue or len(self._jobs.get(uid, ())) >= limits.max_queue_per_uid:
            return True
        # A single graph over the bound is taken where no other is held, or it could never be compiled.
        return (held.total() > 0 and held.total() + size > limits.max_queue_bytes) or (
            held[uid] > 0 and held[uid] + size > limits.max_queue_bytes // 2
        )

    def add(self, job: Job) -> None:
        if job.uid not in self._jobs:
            self._jobs[job.uid] = []
            self._turn.append(job.uid)
        bisect.insort(self._jobs[job.uid], job, key=lambda item: item.order)
        self._bytes[job.uid] += len(job.blob)

    def remove(self, job: Job) -> None:
        jobs = self._jobs[job.uid]
        jobs.remove(job)
        self._bytes[job.uid] -= len(job.blob)
        if not jobs:
            del self._jobs[job.uid]
            self._turn.remove(job.uid)
            del self._bytes[job.uid]

    def serve(self, job: Job) -> None:
        """Remove a job that runs now: its user's next one goes after the next one of every other user."""
        self.remove(job)
        if job.uid in self._turn:
            self._turn.remove(job.uid)
            self._turn.append(job.uid)

    def wait_for(self, job: Job) -> None:
        """Move a background job to where those of waiting clients are."""
        self.remove(job)
        job.waiting = True
        self.add(job)

    def position(self, job: Job) -> int:
        """How many jobs are before this one."""
        return sum(other.order < job.order for jobs in self._jobs.values() for other in jobs)
