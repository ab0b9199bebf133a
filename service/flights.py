"""The queued and running jobs, one per flight (user, store and key), and the clients to which the daemon reports each
job's end.
"""

from __future__ import annotations

from precompiled.service.events import Instruction, Reply, Submitted
from precompiled.service.job_states import Flight, ScheduledJob

from precompiled import wire

# how many submits of a job get a report of its end; clients of further submits must look into the store
MAX_INTERESTED = 4096
MAX_INTERESTED_OF_USER = 8192  # the same limit over all jobs of one user


class Flights:
    def __init__(self) -> None:
        self.jobs: dict[Flight, ScheduledJob] = {}  # queued and running

    def add(self, job: ScheduledJob, event: Submitted) -> None:
        self.jobs[job.flight] = job
        self.join(job, event)

    def join(self, job: ScheduledJob, event: Submitted) -> None:
        """Add a submit's client to a job, unless the job or its user has too many clients."""
        name = event.message.id
        if job.interested and name not in job.interested:
            of_user = sum(len(other.interested) for other in self.jobs.values() if other.uid == job.uid)
            if len(job.interested) >= MAX_INTERESTED or of_user >= MAX_INTERESTED_OF_USER:
                return
        job.interested[name] = event.client

    def withdraw(self, uid: int, ids: set[str]) -> list[ScheduledJob]:
        """Withdraw a user's Submit messages; returns the jobs without any remaining Submit message."""
        asked = [job for job in self.jobs.values() if job.uid == uid and ids & job.interested.keys()]
        for job in asked:
            for name in ids & job.interested.keys():
                del job.interested[name]
        return [job for job in asked if not job.interested]

    def end(
        self, job: ScheduledJob, out: list[Instruction], message: wire.Accepted | wire.Busy | wire.Rejected
    ) -> None:
        """Remove a job that has ended, and send ``message`` to its clients."""
        del self.jobs[job.flight]
        for name, client in job.interested.items():
            if isinstance(message, wire.Accepted):
                reply: wire.DaemonMessage = wire.Accepted(name, message.key, message.state)
            elif isinstance(message, wire.Busy):
                reply = wire.Busy(name, message.key, message.retry_after_s)
            else:
                reply = wire.Rejected(message.code, message.message, message.action, name, job.submit.key)
            out.append(Reply(client, reply))
