"""What each user may have of the queue and of the slots while others wait. Pure, as the scheduler is.

- **Queue**: when it is full, the user who holds the most makes room for one who holds less: his last job is displaced,
  and its clients submit again later.
- **Slots**: a user with nothing under way gets one above the limit once his first job has waited for ``share_s``.
- **Processes**: where none is left for that, the job that has run longest, and longer than ``share_run_s``, is stopped
  and queued again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from precompiled.service.events import Limits
from precompiled.service.job_queue import JobQueue
from precompiled.service.jobs import Job
from precompiled.service.workers import Worker

MAX_DOUBLINGS = 2  # of the time that a displaced job may run before it is displaced again


def room_for(queue: JobQueue, uid: int, size: int, limits: Limits) -> list[Job] | None:
    """The jobs that are displaced for one more of ``uid`` with ``size`` bytes; None: it has no place."""
    counts, sizes = queue.counts(), queue.sizes()
    if counts[uid] >= limits.max_queue_per_uid or (sizes[uid] and sizes[uid] + size > limits.max_queue_bytes // 2):
        return None
    displaced: list[Job] = []
    last = {user: len(queue.of(user)) for user in counts}
    while True:
        held: Counter[int] | None = None
        if counts.total() >= limits.max_queue:
            held, mine = counts, counts[uid] + 1
        elif sizes.total() and sizes.total() + size > limits.max_queue_bytes:  # a single graph is taken in any case
            held, mine = sizes, sizes[uid] + size
        if held is None:
            return displaced
        users = [user for user in counts if user != uid and counts[user] > 1 and held[user] > mine]
        if not users:
            return None
        user = max(users, key=lambda user: held[user])
        last[user] -= 1
        job = queue.of(user)[last[user]]
        displaced.append(job)
        counts[user] -= 1
        sizes[user] -= job.size


def under_way(workers: Iterable[Worker]) -> Counter[int]:
    """How many slots each user has."""
    return Counter(w.seat.uid for w in workers if w.state in ("starting", "busy"))


def _first_jobs(queue: JobQueue, workers: Mapping[int, Worker], now: float) -> Iterator[Job]:
    """The first job of each user who has nothing under way, in the order in which they are served."""
    served, seen = set(under_way(workers.values())), set()
    for job in queue.ready(now):
        if job.uid not in seen and job.uid not in served:
            yield job
        seen.add(job.uid)
        if len(seen) == queue.users:
            return


def claims(queue: JobQueue, workers: Mapping[int, Worker], limits: Limits, now: float) -> list[Job]:
    """Jobs that a slot above the limit is due to."""
    if not under_way(workers.values()):
        return []
    return [job for job in _first_jobs(queue, workers, now) if now - job.since >= limits.share_s]


def _may_run(worker: Worker, limits: Limits) -> float:
    doublings = min(worker.job.displaced, MAX_DOUBLINGS) if worker.job is not None else 0
    return limits.share_run_s * 2**doublings


def longest_running(workers: Iterable[Worker], uid: int, limits: Limits, now: float) -> Worker | None:
    """The worker that is stopped for a claim of ``uid``: of the user who has the most, the one that has run longest."""
    workers = list(workers)
    held = under_way(workers)
    found = [
        w for w in workers
        if w.state in ("starting", "busy") and w.seat.uid != uid
        and now - w.since >= _may_run(w, limits)
    ]  # fmt: skip
    return max(found, key=lambda w: (held[w.seat.uid], now - w.since), default=None)


def next_wakes(queue: JobQueue, workers: Mapping[int, Worker], limits: Limits, now: float) -> list[float]:
    """When a claim may become due, or may be met."""
    firsts = list(_first_jobs(queue, workers, now))
    if not firsts:
        return []
    times = [job.since + limits.share_s for job in firsts]
    times += [w.since + _may_run(w, limits) for w in workers.values() if w.state in ("starting", "busy")]
    return [at for at in times if at > now]
