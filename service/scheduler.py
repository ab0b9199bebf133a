"""Makes the daemon's decisions, as a pure state machine: takes events and the time, and returns instructions. Does no
I/O.

A job::

    queued ---assign---> running --publish--> published
      |  ^                  |-----fail------> failed
      |  '-lose-worker,park,|                                 (park: another host or the farm compiles it)
      |           displace--|                                 (displace: another user's job takes its place)
      |                     '--quarantine---> quarantined     (it killed two workers, or timed out)
      '--refuse--> failed                                     (no worker starts for its seat)
    queued, running --cancel--> dropped                       (by a user, or the sources of a watch changed)
    queued --displace--> dropped                              (the queue is full, and another user holds less)
    queued, running --shut-down--> dropped

A worker::

    starting --ready--> idle --assign--> busy --done--> idle
    busy --overlap--> busy                 (takes the next job while the C++ compilers run for its own one)
    starting, idle, busy --stop--> stopping --gone--> (removed);  "gone" is possible in every state: processes die

A courier has the same states as a worker.

The parts: placement.py assigns jobs to workers, couriers.py offers them to the farm, outcomes.py ends or requeues a
job, start_failures.py delays starts after failures, flights.py keeps the clients of each job.

There is one job per flight (uid, store, key): a second submit joins the job. Waiting clients come before background
clients, and clients that already run compiled code come last. Users take turns. A user's jobs are first come, first
served. After ``Limits.age_s``, a background job gets the priority of a waiting client's job, so that waiting clients
cannot starve it.
"""

from __future__ import annotations

import itertools
import math

from precompiled.service import shares
from precompiled.service.couriers import COURIER_S, Courier, Couriers
from precompiled.service.events import (
    Asked,
    Cancelled,
    Count,
    Event,
    Expected,
    Instruction,
    Limits,
    Moved,
    Reply,
    SetPriority,
    ShutDown,
    Submitted,
    Tick,
    WorkerDone,
    WorkerGone,
    WorkerLowered,
    WorkerReady,
)
from precompiled.service.flights import Flights
from precompiled.service.job_queue import JobQueue
from precompiled.service.job_states import Flight, Priority, ScheduledJob, Seat
from precompiled.service.outcomes import Outcomes
from precompiled.service.placement import Placement
from precompiled.service.refusals import CANCELLED, GIVEN_UP, STOPPING, advise_retry, make_rejection
from precompiled.service.start_failures import StartFailures
from precompiled.service.workers import Runner, Worker

from precompiled import wire
from precompiled.core.errors import DEVICE_LOST

# the usual size of a submit without its graph, in bytes; only bytes beyond this size count towards the queue's limits
USUAL_MESSAGE_BYTES = 16 << 10


class Scheduler:
    """The state machine of the module's docstring. ``handle`` is its only input."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.stopping = False
        self._numbers = itertools.count(1)  # shared by jobs, workers and couriers
        self._queue = JobQueue()
        self._flights = Flights()
        self._outcomes = Outcomes(limits, self._queue, self._flights)
        self._start_failures = StartFailures(limits)
        self._placement = Placement(limits, self._queue, self._start_failures, self._numbers)
        self._mean_job_s = 5.0  # an estimate until jobs have ended
        self.couriers = Couriers(limits)
        self.workers = self._placement.workers
        self.jobs = self._flights.jobs

    # ------------------------------------------------ queries

    @property
    def queue_depth(self) -> int:
        return len(self._queue)

    def queue_depth_of(self, uid: int) -> int:
        return len(self._queue.of(uid))

    @property
    def busy(self) -> bool:
        """Whether any job is queued or running."""
        return bool(self.jobs)

    @property
    def has_processes(self) -> bool:
        return bool(self._runners())

    def next_wake(self, now: float) -> float | None:
        """Seconds until a Tick can change anything; None: only another event can."""
        limits = self.limits
        times = [runner.kill_at(limits) for runner in self._runners()]
        times += self._placement.next_wakes() + self.couriers.next_wakes()
        times += [at for job in self._queue for at in (job.parked_until, job.kept_until)]
        times = [at for at in times if now < at < math.inf]
        times += shares.next_wakes(self._queue, self.workers, limits, now)
        times += [job.since + limits.age_s for job in self._queue if job.priority is Priority.BACKGROUND]
        return max(0.0, min(times) - now) if times else None

    # ------------------------------------------------ events

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Take ``event`` at time ``now`` (seconds, monotonic); returns instructions in the order to carry them out."""
        out: list[Instruction] = []
        match event:
            case Submitted():
                self._submitted(event, now, out)
            case Expected():
                if not (self.stopping or self.jobs):  # a job may need the free slot
                    self._placement.start_ahead(event, now, out)
            case WorkerReady() | WorkerLowered() | WorkerDone() | WorkerGone() if courier := self.couriers.get(
                event.worker
            ):
                self._of_courier(courier, event, now, out)
            case WorkerReady(number):
                self._ready(number, now, out)
            case WorkerLowered(number, lowered):
                self._lowered(number, lowered, now, out)
            case WorkerDone(number, finished):
                self._done(number, finished, now, out)
            case WorkerGone():
                self._gone(event, now, out)
            case Cancelled(uid, ids):
                self._cancelled(uid, set(ids), now, out)
            case Asked():
                self._asked(event, now, out)
            case Tick():
                self._tick(now, out)
            case ShutDown():
                self._shut_down(now, out)
        return out

    def _submitted(self, event: Submitted, now: float, out: list[Instruction]) -> None:
        message, uid = event.message, event.uid
        flight: Flight = (uid, message.store, message.key)
        if self.stopping:
            out.append(make_rejection(event, "stopping", "The daemon is stopping", "Submit to the next daemon"))
            out.append(Count(uid, "rejected", reason="stopping"))
            return
        job = self.jobs.get(flight)
        if job is not None:
            self._join(job, event, now, out)
            self._assign_jobs(now, out)
            return
        seat = Seat.of(uid, message.device, message.environment)
        for found, code, action in (
            (self._outcomes.quarantined.find(flight, now), "key-quarantined", advise_retry(message.key)),
            (self._start_failures.refusal(seat, now), "worker-cannot-start", "See `precompiled doctor`"),
        ):
            if found is not None:
                out.append(make_rejection(event, code, f"{found.why} ({found.until - now:.0f} s to go)", action))
                out.append(Count(uid, "rejected", reason=code))
                return
        size = len(event.blob) + max(0, len(wire.encode(message)) - USUAL_MESSAGE_BYTES)
        displaced = shares.room_for(self._queue, uid, size, self.limits)
        if displaced is None:
            out.append(Reply(event.client, wire.Busy(message.id, message.key, self._retry_after())))
            out.append(Count(uid, "rejected", reason="busy"))
            return
        for other in displaced:
            self._displace(other, now, out)
        job = ScheduledJob(
            next(self._numbers), uid, event.gid, message, event.blob, seat, Priority.of(message), since=now, size=size
        )
        job.note_step("submit", now)
        self._flights.add(job, event)
        self._queue.add(job)
        self._placement.claim(seat, self._placement.yields_until(job, now), out)
        out.append(Count(uid, "submitted"))
        out.append(Moved(message.id, message.key, uid, "queued", job.priority.name.lower()))
        self._assign_jobs(now, out)
        state = "running" if job.state == "running" else "queued"
        position = 0 if state == "running" else self._queue.position(job)
        out.append(Reply(event.client, wire.Accepted(message.id, message.key, state, position)))  # type: ignore[arg-type]

    def _displace(self, job: ScheduledJob, now: float, out: list[Instruction]) -> None:
        """Drop a queued job to make room for another user's job. The dropped job's clients submit it again later."""
        self._queue.remove(job)
        out.append(job.move("displace", now))
        out.append(Count(job.uid, "rejected", reason="busy"))
        self._flights.end(job, out, wire.Busy("", job.submit.key, self._retry_after()))

    def _join(self, job: ScheduledJob, event: Submitted, now: float, out: list[Instruction]) -> None:
        """Add a submit to a queued or running job. A submit with a known id is a client's retry."""
        message = event.message
        again = message.id in job.interested
        self._flights.join(job, event)
        if (priority := Priority.of(message)) < job.priority:
            job.note_step("raise", now)
            if job.state == "queued":
                self._queue.reorder(job, priority)
            else:
                job.priority = priority
                out.append(SetPriority(self._runner_of(job).number, self._placement.yields_until(job, now)))
        if not again:
            out.append(Count(event.uid, "submitted"))
            out.append(Count(event.uid, "deduplicated"))
        position = self._queue.position(job) if job.state == "queued" else 0
        state = "deduplicated" if not again else job.state
        out.append(Reply(event.client, wire.Accepted(message.id, message.key, state, position)))  # type: ignore[arg-type]

    def _of_courier(
        self,
        courier: Courier,
        event: WorkerReady | WorkerLowered | WorkerDone | WorkerGone,
        now: float,
        out: list[Instruction],
    ) -> None:
        job = next(iter(courier.jobs), None)
        match event:
            case WorkerGone():
                why = _why(courier, event)
                self.couriers.remove(courier, why, now)
                if job is not None:
                    self._outcomes.keep(job, now, COURIER_S, why, out)
            case _ if courier.state == "stopping":
                return
            case WorkerReady():
                courier.move("ready", now)
            case WorkerLowered():
                out.append(courier.kill("protocol", now))  # it compiles nothing
            case WorkerDone(_, finished):
                job = self._take_back(courier, finished, now, out)
                if job is None:
                    return
                if finished.outcome == "kept":
                    self._outcomes.keep(job, now, finished.again_s, finished.message, out)
                else:
                    self._outcomes.settle(job, finished, now, out)
        self._assign_jobs(now, out)

    def _ready(self, number: int, now: float, out: list[Instruction]) -> None:
        worker = self.workers.get(number)
        if worker is None or worker.state == "stopping":
            return  # the worker was stopped before it became ready
        worker.move("ready", now)
        self._start_failures.succeeded(worker.seat)
        self._assign_jobs(now, out)

    def _lowered(self, number: int, lowered: wire.Lowered, now: float, out: list[Instruction]) -> None:
        worker = self.workers.get(number)
        if worker is None or worker.state == "stopping":
            return
        job = worker.find(lowered.id, lowered.key)
        if job is None:
            out.append(worker.kill("protocol", now))
            return
        job.is_lowered = True
        self._assign_jobs(now, out)

    def _done(self, number: int, finished: wire.Finished, now: float, out: list[Instruction]) -> None:
        worker = self.workers.get(number)
        if worker is None or worker.state == "stopping":
            return  # too late: the worker is being ended, and its job with it
        job = self._take_back(worker, finished, now, out)
        if job is None:
            return
        if self._outcomes.settle(job, finished, now, out):
            worker.jobs_done += 1
            if job.priority is not Priority.IDLE:
                self._mean_job_s += 0.2 * (now - job.started - self._mean_job_s)
            if finished.reason == DEVICE_LOST:  # permanently: the worker's next job would fail as well
                self._placement.retire(worker, DEVICE_LOST, now, out)
            elif worker.leaves or worker.jobs_done >= self.limits.jobs_per_worker:
                self._placement.retire(worker, worker.leaves or "recycled", now, out)
        self._assign_jobs(now, out)

    def _take_back(
        self, runner: Runner, finished: wire.Finished, now: float, out: list[Instruction]
    ) -> ScheduledJob | None:
        """The job that a process reports as done. If the process had no such job, kill the process and return None."""
        job = runner.find(finished.id, finished.key)
        if job is None or finished.outcome not in runner.outcomes:
            # A worker runs its user's code, so this is bad input and not a bug in precompiled.
            out.append(runner.kill("protocol", now))
            return None
        runner.has_ended(job, now)
        return job

    def _gone(self, event: WorkerGone, now: float, out: list[Instruction]) -> None:
        worker = self.workers.pop(event.worker, None)
        if worker is None:
            return
        reason = worker.stop_reason or event.reason
        why = _why(worker, event)
        if worker.jobs:
            self._placement.died(worker, why, now)
            for job in worker.jobs:
                self._outcomes.lost(job, reason, why, now, out, event.unread)
        elif reason == "host-full" and self._start_failures.pauses(now):
            pass  # the host was full, so the seat has not failed
        elif not worker.was_ready and reason != "displaced":
            self._start_failed(worker, why, now, out)
        self._assign_jobs(now, out)

    def _start_failed(self, worker: Worker, why: str, now: float, out: list[Instruction]) -> None:
        jobs = [job for job in self._queue.of(worker.seat.uid) if job.seat == worker.seat]
        if not jobs:
            self._start_failures.failed_ahead(worker.seat, why, now, spare=worker.is_spare)
            return
        text = f"No worker starts with {worker.interpreter.executable}: {why}"
        if self._start_failures.failed(worker.seat, text, now):
            for job in jobs:
                self._queue.remove(job)
                out.append(job.move("refuse", now, why))
                out.append(Count(job.uid, "failed"))
                refusal = wire.Rejected("worker-cannot-start", text, "See `precompiled doctor`", key=job.submit.key)
                self._flights.end(job, out, refusal)

    def _cancelled(self, uid: int, ids: set[str], now: float, out: list[Instruction]) -> None:
        """Cancel the jobs that only these Submit messages requested.

        The worker of a running job is killed: a compile cannot be interrupted, and the graphs of the new source need
        the worker's slot.
        """
        for job in self._flights.withdraw(uid, ids):
            self._give_up(job, CANCELLED, now, out)
        self._assign_jobs(now, out)

    def _give_up(self, job: ScheduledJob, reply: wire.Rejected, now: float, out: list[Instruction]) -> None:
        if job.state == "queued":
            self._queue.remove(job)
        else:
            runner = self._runner_of(job)
            runner.jobs.remove(job)
            if runner.state == "busy":  # otherwise it is being ended already (timeout, memory)
                out.append(runner.kill("cancelled", now))
                others, runner.jobs = runner.jobs, []
                for other in others:
                    self._outcomes.interrupted(other, now, out)
        out.append(job.move("cancel", now))
        self._flights.end(job, out, reply)

    def _asked(self, event: Asked, now: float, out: list[Instruction]) -> None:
        """Cancel jobs (GiveUp) or end quarantines (Retry) by key prefix.

        ``event.uid``: the user whose keys are meant; None: all users.
        """
        beginnings = tuple(event.message.keys)

        def meant(flight: Flight) -> bool:
            return event.uid in (None, flight[0]) and flight[2].startswith(beginnings)

        if isinstance(event.message, wire.GiveUp):
            found = [flight for flight in self.jobs if meant(flight)]
            for flight in found:
                self._give_up(self.jobs[flight], GIVEN_UP, now, out)
            self._assign_jobs(now, out)
        else:
            found = [flight for flight in self._outcomes.quarantined.names() if meant(flight)]
            for flight in found:
                self._outcomes.quarantined.end(flight)
        out.append(Reply(event.client, wire.Changed(sorted({key for _, _, key in found}))))

    def _tick(self, now: float, out: list[Instruction]) -> None:
        limits = self.limits
        for job in [job for job in self._queue if job.priority is Priority.BACKGROUND]:
            if now - job.since < limits.age_s:
                continue
            self._queue.reorder(job, Priority.WAITING)
            job.note_step("age", now)
        for runner in self._runners():
            if now >= runner.kill_at(limits):
                out.append(runner.kill("start-timeout" if runner.state == "starting" else "timeout", now))
        self._placement.tick(now, out)
        self.couriers.tick(now, out)
        self._outcomes.quarantined.tick(now)
        self._start_failures.tick(now)
        self._assign_jobs(now, out)

    def _shut_down(self, now: float, out: list[Instruction]) -> None:
        if self.stopping:
            return
        self.stopping = True
        for job in list(self.jobs.values()):
            if job.state == "queued":
                self._queue.remove(job)
            else:
                self._runner_of(job).jobs.remove(job)
            out.append(job.move("shut-down", now))
            self._flights.end(job, out, STOPPING)
        for runner in self._runners():
            if runner.state == "idle":
                out.append(runner.stop("shut-down", now))
            elif runner.state != "stopping":
                out.append(runner.kill("shut-down", now))

    # ------------------------------------------------ helpers

    def _assign_jobs(self, now: float, out: list[Instruction]) -> None:
        """Give queued jobs to workers. Jobs without a free slot go to couriers if their user has a farm."""
        if self.stopping:
            return
        self._placement.assign_jobs(now, out)
        queued = list(self._queue.ready(now))
        for job, courier in self.couriers.offers(queued, self._placement.starting(), self._numbers, now, out):
            self._placement.run(job, courier, now, out, wire.Offer(job.submit.environment, self.limits.job_timeout_s))

    def _runners(self) -> list[Runner]:
        return [*self.workers.values(), *self.couriers]

    def _runner_of(self, job: ScheduledJob) -> Runner:
        assert job.worker is not None
        return self.couriers.get(job.worker) or self.workers[job.worker]

    def _retry_after(self) -> float:
        """Estimated seconds until the queue has a free place."""
        return min(60.0, max(1.0, self._mean_job_s / self.limits.slots))


def _why(runner: Runner, event: WorkerGone) -> str:
    reason = runner.stop_reason or event.reason
    return f"{reason}: {event.detail}" if event.detail else reason
