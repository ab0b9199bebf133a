"""Couriers: processes that offer queued jobs to their user's farm, and compile nothing.

The limits for slots and worker processes do not count couriers: a courier holds a job for milliseconds, and exits soon
after. A courier serves one user and interpreter, on any device. The death of a courier does not count against its job,
since a courier runs no part of the compile. Workers could not offer jobs: on a host with one slot, the only worker is
busy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from precompiled.service.cooldowns import Cooldowns
from precompiled.service.events import COURIER, Instruction, Limits, StartWorker
from precompiled.service.job_states import ScheduledJob, Seat
from precompiled.service.workers import Runner, Worker

MAX_COURIERS = 4  # the maximum number of couriers of one user, because the limits for workers do not cover couriers
# How long a courier may hold a job. If the courier dies, its job is offered again after the same time.
COURIER_S = 60.0

Post = tuple[int, bytes]  # uid, digest of the interpreter (Seat.interpreter)


@dataclass(eq=False)
class Courier(Runner):
    """A process that offers one user's jobs for one interpreter."""

    outcomes = Worker.outcomes | {"kept"}

    post: Post

    def job_limit_s(self, limits: Limits) -> float:
        return COURIER_S


class Couriers:
    """All couriers: at most one for each user and interpreter (a post)."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._table: dict[int, Courier] = {}
        self._cooldowns: Cooldowns[Post] = Cooldowns()  # posts whose courier failed to start

    def __iter__(self) -> Iterator[Courier]:
        return iter(self._table.values())

    def get(self, number: int) -> Courier | None:
        return self._table.get(number)

    def remove(self, courier: Courier, why: str, now: float) -> None:
        del self._table[courier.number]
        if not courier.was_ready:
            self._cooldowns.start(courier.post, now + self._limits.start_refused_s, why)

    def offers(
        self,
        queued: Iterable[ScheduledJob],
        starting: Counter[Seat],
        numbers: Iterator[int],
        now: float,
        out: list[Instruction],
    ) -> Iterator[tuple[ScheduledJob, Courier]]:
        """Yield an idle courier for each queued job that no starting worker will take.

        Start couriers that are missing.
        """
        of_posts = {courier.post: courier for courier in self}
        of_users = Counter(uid for uid, _ in of_posts)
        promised = starting.copy()
        for job in queued:
            if promised[job.seat] > 0:
                promised[job.seat] -= 1
                continue
            if not job.submit.farm or job.kept_until > now:
                continue
            post = (job.uid, job.seat.interpreter)
            courier = of_posts.get(post)
            if courier is not None and courier.state == "idle":
                yield job, courier
            elif courier is None and of_users[job.uid] < MAX_COURIERS and not self._cooldowns.find(post, now):
                of_users[job.uid] += 1
                of_posts[post] = courier = Courier(next(numbers), post, since=now, story=[(now, "start")])
                self._table[courier.number] = courier
                out.append(StartWorker(courier.number, job.uid, job.gid, job.submit.environment, COURIER))

    def tick(self, now: float, out: list[Instruction]) -> None:
        """Stop couriers that were idle for too long."""
        out += [courier.stop("idle", now) for courier in self if now >= self._leaves_at(courier)]
        self._cooldowns.tick(now)

    def next_wakes(self) -> list[float]:
        """The times at which ``tick`` has something to do."""
        return [self._leaves_at(courier) for courier in self]

    def _leaves_at(self, courier: Courier) -> float:
        limits = self._limits
        return courier.since + min(limits.worker_idle_s, limits.extra_idle_s) if courier.state == "idle" else math.inf
