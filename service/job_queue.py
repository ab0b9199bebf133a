"""The queued jobs of all users, and their order. Limits on their number: service/shares.py."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator

from precompiled.service.job_states import Priority, ScheduledJob


class JobQueue:
    """Jobs of a higher priority come first. Within a priority, users take turns, and a user's jobs are FIFO."""

    def __init__(self) -> None:
        # maps a uid to its jobs, sorted by ScheduledJob.order; has no empty lists
        self._jobs: dict[int, list[ScheduledJob]] = {}
        self._turn: list[int] = []  # the uids of _jobs; the first is served next
        self._bytes: Counter[int] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self._jobs.values()))

    def __iter__(self) -> Iterator[ScheduledJob]:
        """All jobs, in the order in which they are served."""
        for priority in Priority:
            lanes = [[job for job in self._jobs[uid] if job.priority is priority] for uid in self._turn]
            for depth in range(max(map(len, lanes), default=0)):
                for lane in lanes:
                    if depth < len(lane):
                        yield lane[depth]

    def ready(self, now: float) -> Iterator[ScheduledJob]:
        """The jobs that are not parked, in the order in which they are served."""
        return (job for job in self if job.parked_until <= now)

    def of(self, uid: int) -> list[ScheduledJob]:
        """A user's jobs, sorted by ScheduledJob.order."""
        return list(self._jobs.get(uid, ()))

    @property
    def users(self) -> int:
        """How many users have queued jobs."""
        return len(self._turn)

    def counts(self) -> Counter[int]:
        """How many queued jobs each user has."""
        return Counter({uid: len(jobs) for uid, jobs in self._jobs.items()})

    def sizes(self) -> Counter[int]:
        """How many bytes each user's queued jobs take."""
        return Counter(self._bytes)

    def add(self, job: ScheduledJob) -> None:
        if job.uid not in self._jobs:
            self._jobs[job.uid] = []
            self._turn.append(job.uid)
        bisect.insort(self._jobs[job.uid], job, key=lambda item: item.order)
        self._bytes[job.uid] += job.size

    def remove(self, job: ScheduledJob) -> None:
        jobs = self._jobs[job.uid]
        jobs.remove(job)
        self._bytes[job.uid] -= job.size
        if not jobs:
            del self._jobs[job.uid]
            self._turn.remove(job.uid)
            del self._bytes[job.uid]

    def serve(self, job: ScheduledJob) -> None:
        """Remove a job that starts, and end its user's turn."""
        self.remove(job)
        self.end_turn(job.uid)

    def end_turn(self, uid: int) -> None:
        """Serve every other user's next job before the next one of ``uid``."""
        if uid in self._turn:
            self._turn.remove(uid)
            self._turn.append(uid)

    def reorder(self, job: ScheduledJob, priority: Priority) -> None:
        """Change a job's priority."""
        self.remove(job)
        job.priority = priority
        self.add(job)

    def position(self, job: ScheduledJob) -> int:
        """How many queued jobs have a lower ScheduledJob.order, whatever their user."""
        return sum(other.order < job.order for jobs in self._jobs.values() for other in jobs)
