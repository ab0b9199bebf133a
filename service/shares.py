"""Each user's share of the queue and of the slots. Pure, like the scheduler.

- **Queue**: if it is full, the last job of the user who holds the most is displaced for a user who holds less. The
  clients of a displaced job submit it again later.
- **Slots**: a user without a slot gets a slot above the limit after its first job has waited for ``share_s``.
- **Processes**: if a slot above the limit needs a process and none is left, a job that has run longer than
  ``share_run_s`` is stopped and queued again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from precompiled.service.events import Limits
from precompiled.service.job_queue import JobQueue
from precompiled.service.job_states import ScheduledJob
from precompiled.service.workers import Worker

# each displacement doubles the time for which the job may run before it can be displaced again, at most this many times
MAX_DOUBLINGS = 2


def room_for(queue: JobQueue, uid: int, size: int, limits: Limits) -> list[ScheduledJob] | None:
    """The jobs to displace for a new job of ``uid`` with ``size`` bytes; None: the queue has no room for it."""
    counts, sizes = queue.counts(), queue.sizes()
    if counts[uid] >= limits.max_queue_per_uid or (sizes[uid] and sizes[uid] + size > limits.max_queue_bytes // 2):
        return None
    displaced: list[ScheduledJob] = []
    last = {user: len(queue.of(user)) for user in counts}
    while True:
        held: Counter[int] | None = None
        if counts.total() >= limits.max_queue:
            held, mine = counts, counts[uid] + 1
        elif sizes.total() and sizes.total() + size > limits.max_queue_bytes:  # an empty queue accepts any graph
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
    return Counter(w.seat.uid for w in workers if w.is_under_way)


def _first_jobs(queue: JobQueue, workers: Mapping[int, Worker], now: float) -> Iterator[ScheduledJob]:
    """The first job of each user without a slot, in the order in which they are served."""
    served, seen = set(under_way(workers.values())), set()
    for job in queue.ready(now):
        if job.uid not in seen and job.uid not in served:
            yield job
        seen.add(job.uid)
        if len(seen) == queue.users:
            return


def claims(queue: JobQueue, workers: Mapping[int, Worker], limits: Limits, now: float) -> list[ScheduledJob]:
    """The jobs that are entitled to a slot above the limit."""
    if not under_way(workers.values()):
        return []
    return [job for job in _first_jobs(queue, workers, now) if now - job.since >= limits.share_s]


def _may_run(worker: Worker, limits: Limits) -> float:
    doublings = min(max((job.displaced for job in worker.jobs), default=0), MAX_DOUBLINGS)
    return limits.share_run_s * 2**doublings


def longest_running(workers: Iterable[Worker], uid: int, limits: Limits, now: float) -> Worker | None:
    """The worker to stop for a claim of ``uid``: the longest-running one of the user who has the most slots."""
    workers = list(workers)
    held = under_way(workers)
    found = [
        w
        for w in workers
        if w.state in ("starting", "busy") and w.seat.uid != uid and now - w.since >= _may_run(w, limits)
    ]
    return max(found, key=lambda w: (held[w.seat.uid], now - w.since), default=None)


def next_wakes(queue: JobQueue, workers: Mapping[int, Worker], limits: Limits, now: float) -> list[float]:
    """The times at which a user may get a claim to a slot, or at which a claim may be satisfied."""
    firsts = list(_first_jobs(queue, workers, now))
    if not firsts:
        return []
    times = [job.since + limits.share_s for job in firsts]
    times += [w.since + _may_run(w, limits) for w in workers.values() if w.state in ("starting", "busy")]
    return [at for at in times if at > now]
