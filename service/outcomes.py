"""Decides a job's next state when its process reports an outcome or dies. Pure, like the scheduler.

- **Published** or **failed**: the job ends.
- **Parked**: another host or the farm compiles the job. The job is queued again; no worker gets it for a while.
- **Kept**: the farm does not accept the job. The job is queued again, and no courier gets it for a while.
- **Lost**: the job's worker has died. After the first death, the job is queued again. After a second death or a
  timeout, the job's key is quarantined. Two kinds of death do not count: the death of a worker that had a second job
  (the job then runs alone), and the first death of a worker that had not read the graph.
"""

from __future__ import annotations

from precompiled.service.cooldowns import Cooldowns
from precompiled.service.events import Count, Instruction, Limits
from precompiled.service.flights import Flights
from precompiled.service.job_queue import JobQueue
from precompiled.service.job_states import Flight, ScheduledJob
from precompiled.service.refusals import WITHOUT_A_RECORD, advise_retry

from precompiled import wire

MIN_PARKED_S, MAX_PARKED_S = 0.1, 60.0
MAX_DEATHS = 2  # a key is quarantined after this many of its workers have died
# The death of a worker that had not read the job's graph does not count, up to this many times per job. The number is
# limited, because a graph that is too large for the memory also causes such deaths.
MAX_UNREAD = 1


class Outcomes:
    def __init__(self, limits: Limits, queue: JobQueue, flights: Flights) -> None:
        self._limits = limits
        self._queue = queue
        self._flights = flights
        self.quarantined: Cooldowns[Flight] = Cooldowns()

    def settle(self, job: ScheduledJob, finished: wire.Finished, now: float, out: list[Instruction]) -> bool:
        """Apply a worker's outcome: end the job or park it. Returns whether the job has ended."""
        if finished.outcome == "parked":
            self._queue_again(job, now, "", out)
            job.parked_until = now + min(max(finished.again_s, MIN_PARKED_S), MAX_PARKED_S)
            return False
        if finished.outcome == "failed":
            out.append(job.move("fail", now, finished.reason))
            out.append(Count(job.uid, "failed"))
            why = finished.message or finished.reason
            action = WITHOUT_A_RECORD.get(finished.reason, "")
            # For all other reasons, the client reads the failure record in the store.
            code = finished.reason if finished.reason in WITHOUT_A_RECORD else "compile-failed"
            self._flights.end(job, out, wire.Rejected(code, why, action, key=job.submit.key))
            return True
        out.append(job.move("publish", now, finished.outcome))
        if finished.outcome == "published":
            out.append(Count(job.uid, "compiled"))
            out.append(Count(job.uid, "compile_s", max(0.0, finished.compile_s)))
        else:  # "exists": another process published the artifact after the client's lookup
            out.append(Count(job.uid, "deduplicated"))
        self._flights.end(job, out, wire.Accepted("", job.submit.key, "published"))
        return True

    def keep(self, job: ScheduledJob, now: float, again_s: float, why: str, out: list[Instruction]) -> None:
        """Requeue a job that the farm does not accept. A worker may take the job at once."""
        self._queue_again(job, now, why, out)
        job.kept_until = now + max(again_s, MIN_PARKED_S)

    def interrupted(self, job: ScheduledJob, now: float, out: list[Instruction]) -> None:
        """Requeue a job whose worker is ended because of the worker's other job."""
        self._queue_again(job, now, "its worker's other job is cancelled", out)

    def _queue_again(self, job: ScheduledJob, now: float, why: str, out: list[Instruction]) -> None:
        """Requeue a job. The attempt does not count."""
        out.append(job.move("park", now, why))
        job.worker, job.attempt = None, job.attempt - 1
        self._queue.add(job)

    def lost(
        self, job: ScheduledJob, reason: str, why: str, now: float, out: list[Instruction], unread: bool = False
    ) -> None:
        """Requeue a job whose worker has died, or quarantine its key."""
        if job.beside:  # perhaps the other job caused this death or timeout
            job.alone, reason = True, "died"
        elif unread and job.unread < MAX_UNREAD:  # the graph did not cause this death
            job.unread += 1
        else:
            job.deaths += 1
        job.worker = None
        if job.deaths < MAX_DEATHS and reason != "timeout":  # a second attempt would take as long
            out.append(job.move("lose-worker", now, why))
            out.append(Count(job.uid, "retried"))
            self._queue.add(job)
            return
        text = (
            f"The compile took longer than {self._limits.job_timeout_s:g} s; {why}"
            if reason == "timeout"
            else f"The graph killed {job.deaths} workers; last death: {why}"
        )
        out.append(job.move("quarantine", now, why))
        out.append(Count(job.uid, "failed"))
        self.quarantined.start(job.flight, now + self._limits.quarantine_s, text)
        key = job.submit.key
        refusal = wire.Rejected("key-quarantined", text, advise_retry(key), key=key)
        self._flights.end(job, out, refusal)
