"""The daemon's decisions: a pure state machine. Events and the time go in, instructions come out; no I/O.

A job::

    queued ---assign---> running --publish--> published
      |  ^                  |-----fail------> failed
      |  '-lose-worker,park,|                                 (park: another host compiles it; it is asked again)
      |           displace--|                                 (displace: another user's job has its place)
      |                     '--quarantine---> quarantined     (it killed two workers, or ran out of time)
      '--refuse--> failed                                     (its seat cannot start a worker)
    queued, running --cancel--> dropped                       (a watch's, whose sources have changed)
    queued --displace--> dropped                              (the queue is full, and another user holds less)
    queued, running --shut-down--> dropped

A worker::

    starting --ready--> idle --assign--> busy --done--> idle
    starting, idle, busy --stop--> stopping --gone--> (forgotten);  and "gone" from every state: processes die

Slots and processes: a *slot* is the right to use the processors (a starting or busy worker holds one, and one that
was told to leave so that another can start); a *process* is a worker that exists, mostly idle and warm. A *courier*
(service/couriers.py) has the states of a worker, and counts as neither.

One flight per (uid, store, key): a second submit joins the first. Order: waiting clients before background ones,
between users by turns, first come first served within a user. A background job becomes a waiting one after
``Limits.age_s``, so that no stream of waiting clients can starve it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Iterator

from precompiled.service import shares
from precompiled.service.cooldowns import Cooldowns
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
    RunJob,
    ShutDown,
    StartWorker,
    Submitted,
    Tick,
    WorkerDone,
    WorkerGone,
    WorkerReady,
)
from precompiled.service.job_queue import JobQueue
from precompiled.service.jobs import Flight, Job, Seat
from precompiled.service.refusals import CANCELLED, GIVEN_UP, STOPPING, WITHOUT_A_RECORD, rejected
from precompiled.service.workers import Runner, Worker

from precompiled import wire
from precompiled.core.errors import DEVICE_LOST

MAX_INTERESTED = 4096  # clients told about one job's end; more are accepted, and read the store like everybody
MAX_INTERESTED_OF_USER = 8192  # the same over all jobs of one user
USUAL_MESSAGE_BYTES = 16 << 10  # of a submit without its graph: what is above counts as the graph does
MIN_PARKED_S, MAX_PARKED_S = 0.1, 60.0
MAX_DEATHS = 2  # workers that one key may kill
MAX_HOST_FULL, HOST_FULL_S = 30, 1.0  # starts that the host has no room for, in a row, and the pause after each
MAX_START_FAILURES = 2  # in a row, before a seat is refused for a while
EXPECTED_IN_VAIN_S = 24 * 3600.0  # for this long a seat gets no worker ahead of a graph, after one that got none
FINISHED_KEPT = 64  # ended jobs whose stories are kept for diagnosis


class Scheduler:
    """See the module's docstring. ``handle`` is the only way in."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.workers: dict[int, Worker] = {}
        self.couriers = Couriers(limits)
        self.jobs: dict[Flight, Job] = {}  # queued and running
        self.finished: deque[Job] = deque(maxlen=FINISHED_KEPT)
        self.stopping = False
        self._queue = JobQueue()
        self._quarantined: Cooldowns[Flight] = Cooldowns()
        self._refused: Cooldowns[Seat] = Cooldowns()
        # Seats of workers that were started ahead of a graph, and failed or got none.
        self._expected_in_vain: Cooldowns[Seat] = Cooldowns()
        self._start_failures: Counter[Seat] = Counter()
        self._host_full = 0  # starts in a row that the host had no room for
        self._starts_at = 0.0  # no worker is started before
        self._numbers = itertools.count(1)  # of jobs, workers and couriers
        self._mean_job_s = 5.0  # a guess, until jobs have ended

    # ------------------------------------------------ queries

    @property
    def queue_depth(self) -> int:
        return len(self._queue)

    def queue_depth_of(self, uid: int) -> int:
        return len(self._queue.of(uid))

    @property
    def busy(self) -> bool:
        """Whether there is any job."""
        return bool(self.jobs)

    @property
    def has_processes(self) -> bool:
        return bool(self._runners())

    def next_wake(self, now: float) -> float | None:
        """Seconds until a Tick can change anything; None: never, without another event."""
        limits = self.limits
        times: list[float] = []
        for worker in self.workers.values():
            if worker.state == "idle":
                times.append(worker.since + min(limits.worker_idle_s, limits.extra_idle_s))
                times.append(worker.since + limits.worker_idle_s)
        times += [runner.kill_at(limits) for runner in self._runners()] + self.couriers.next_wakes()
        times = [at for at in times if now < at < math.inf]
        times += shares.next_wakes(self._queue, self.workers, limits, now)
        times += [job.since + limits.age_s for job in self._queue if not job.waiting]
        times += [self._starts_at] if self._starts_at > now else []
        times += [at for job in self._queue for at in (job.parked_until, job.kept_until) if at > now]
        return max(0.0, min(times) - now) if times else None

    # ------------------------------------------------ events

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """What to do about ``event`` at time ``now`` (seconds, monotonic), in this order."""
        out: list[Instruction] = []
        match event:
            case Submitted():
                self._submitted(event, now, out)
            case Expected():
                self._expected(event, now, out)
            case WorkerReady() | WorkerDone() | WorkerGone() if courier := self.couriers.get(event.worker):
                self._of_courier(courier, event, now, out)
            case WorkerReady(number):
                self._ready(number, now, out)
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
            out.append(rejected(event, "stopping", "The daemon is stopping", "Submit again when it is back"))
            out.append(Count(uid, "rejected", reason="stopping"))
            return
        job = self.jobs.get(flight)
        if job is not None:
            self._join(job, event, now, out)
            self._assign_jobs(now, out)
            return
        seat = Seat.of(uid, message.device, message.environment)
        for found, code, action in (
            (self._quarantined.find(flight, now), "key-quarantined", "It is tried again later"),
            (self._refused.find(seat, now), "worker-cannot-start", "See `precompiled doctor`"),
        ):
            if found is not None:
                out.append(rejected(event, code, f"{found.why} ({found.until - now:.0f} s to go)", action))
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
        job = Job(next(self._numbers), uid, event.gid, message, event.blob, seat, message.waiting, since=now, size=size)
        job.story.append((now, "submit"))
        self._interest(job, event)
        self.jobs[flight] = job
        self._queue.add(job)
        out.append(Count(uid, "submitted"))
        out.append(Moved(message.id, message.key, uid, "queued", "waiting" if job.waiting else "background"))
        self._assign_jobs(now, out)
        state = "running" if job.state == "running" else "queued"
        position = 0 if state == "running" else self._queue.position(job)
        out.append(Reply(event.client, wire.Accepted(message.id, message.key, state, position)))  # type: ignore[arg-type]

    def _displace(self, job: Job, now: float, out: list[Instruction]) -> None:
        """Drop a queued job for another user's: its clients submit it again later."""
        self._queue.remove(job)
        out.append(job.move("displace", now))
        out.append(Count(job.uid, "rejected", reason="busy"))
        self._end(job, out, wire.Busy("", job.submit.key, self._retry_after()))

    def _expected(self, event: Expected, now: float, out: list[Instruction]) -> None:
        """Start a worker for an expected graph, where that takes no slot from a job, and evicts no warm worker."""
        seat = Seat.of(event.uid, event.device, event.interpreter)
        known = any(worker.seat == seat for worker in self.workers.values())
        in_vain = self._refused.find(seat, now) or self._expected_in_vain.find(seat, now)
        if self.stopping or self.jobs or known or in_vain:
            return
        if self._slots_used() < self.limits.slots and self._room() > 0:
            self._start(seat, event.gid, event.interpreter, now + self.limits.yield_s, now, out)

    def _join(self, job: Job, event: Submitted, now: float, out: list[Instruction]) -> None:
        """Add a submit to a job that is queued or running; a known id is a client that asks again."""
        message = event.message
        again = message.id in job.interested
        self._interest(job, event)
        if message.waiting and not job.waiting:
            if job.state == "queued":
                self._queue.wait_for(job)
            job.waiting = True
            job.story.append((now, "raise"))
        if not again:
            out.append(Count(event.uid, "submitted"))
            out.append(Count(event.uid, "deduplicated"))
        position = self._queue.position(job) if job.state == "queued" else 0
        state = "deduplicated" if not again else job.state
        out.append(Reply(event.client, wire.Accepted(message.id, message.key, state, position)))  # type: ignore[arg-type]

    def _of_courier(
        self, courier: Courier, event: WorkerReady | WorkerDone | WorkerGone, now: float, out: list[Instruction]
    ) -> None:
        job = courier.job
        match event:
            case WorkerGone():
                why = _why(courier, event)
                self.couriers.remove(courier, why, now)
                if job is not None:
                    self._keep(job, now, COURIER_S, why, out)
            case _ if courier.state == "stopping":
                return
            case WorkerReady():
                courier.move("ready", now)
            case WorkerDone(_, finished):
                job = self._take_back(courier, finished, now, out)
                if job is None:
                    return
                if finished.outcome == "kept":
                    self._keep(job, now, finished.again_s, finished.message, out)
                else:
                    self._settle(job, finished, now, out)
        self._assign_jobs(now, out)

    def _ready(self, number: int, now: float, out: list[Instruction]) -> None:
        worker = self.workers.get(number)
        if worker is None or worker.state == "stopping":
            return  # it was told to leave before it became ready
        worker.move("ready", now)
        self._host_full = 0
        del self._start_failures[worker.seat]
        self._refused.end(worker.seat)
        self._assign_jobs(now, out)

    def _done(self, number: int, finished: wire.Finished, now: float, out: list[Instruction]) -> None:
        worker = self.workers.get(number)
        if worker is None or worker.state == "stopping":
            return  # too late: it is being ended, and its job with it
        job = self._take_back(worker, finished, now, out)
        if job is None:
            return
        if self._settle(job, finished, now, out):
            worker.jobs_done += 1
            self._mean_job_s += 0.2 * (now - job.started - self._mean_job_s)
            lost = finished.reason == DEVICE_LOST  # for good: its next job would fail as well
            if lost or worker.jobs_done >= self.limits.jobs_per_worker:
                out.append(worker.stop(DEVICE_LOST if lost else "recycled", now))
                # Where no other place is free the next worker takes this one's, and evicts no warm worker.
                worker.makes_room = self.queue_depth > 0 and self._room() <= 0
        self._assign_jobs(now, out)

    def _take_back(self, runner: Runner, finished: wire.Finished, now: float, out: list[Instruction]) -> Job | None:
        """The job that a process says is done; None if it had no such job, and is killed for that."""
        job = runner.job
        known = job is not None and (finished.id, finished.key) == (job.submit.id, job.submit.key)
        if job is None or not known or finished.outcome not in runner.outcomes:
            # A process runs its user's code: this is bad input, and no error of ours.
            out.append(runner.kill("protocol", now))
            return None
        runner.move("done", now)
        runner.job = None
        return job

    def _settle(self, job: Job, finished: wire.Finished, now: float, out: list[Instruction]) -> bool:
        """End a job, or park it; whether it has ended."""
        if finished.outcome == "parked":
            self._queue_again(job, now, "", out)
            job.parked_until = now + min(max(finished.again_s, MIN_PARKED_S), MAX_PARKED_S)
            return False
        if finished.outcome == "failed":
            out.append(job.move("fail", now, finished.reason))
            out.append(Count(job.uid, "failed"))
            why = finished.message or finished.reason
            action = WITHOUT_A_RECORD.get(finished.reason, "")
            # Else the client goes by the record, where there is one.
            code = finished.reason if finished.reason in WITHOUT_A_RECORD else "compile-failed"
            self._end(job, out, wire.Rejected(code, why, action, key=job.submit.key))
            return True
        out.append(job.move("publish", now, finished.outcome))
        if finished.outcome == "published":
            out.append(Count(job.uid, "compiled"))
            out.append(Count(job.uid, "compile_s", max(0.0, finished.compile_s)))
        else:  # it was published between the lookup and the submit
            out.append(Count(job.uid, "deduplicated"))
        self._end(job, out, wire.Accepted("", job.submit.key, "published"))
        return True

    def _keep(self, job: Job, now: float, again_s: float, why: str, out: list[Instruction]) -> None:
        """Queue a job again that the farm does not take; a worker may have it at once."""
        self._queue_again(job, now, why, out)
        job.kept_until = now + max(again_s, MIN_PARKED_S)

    def _queue_again(self, job: Job, now: float, why: str, out: list[Instruction]) -> None:
        """Queue a job that was not begun: this try does not count."""
        out.append(job.move("park", now, why))
        job.worker, job.attempt = None, job.attempt - 1
        self._queue.add(job)

    def _gone(self, event: WorkerGone, now: float, out: list[Instruction]) -> None:
        worker = self.workers.pop(event.worker, None)
        if worker is None:
            return
        reason = worker.stop_reason or event.reason
        why = _why(worker, event)
        if worker.job is not None:
            self._lost(worker.job, reason, why, now, out)
        elif reason == "host-full" and self._host_full < MAX_HOST_FULL:
            self._host_full += 1
            self._starts_at = now + HOST_FULL_S
        elif not worker.was_ready and reason != "displaced":
            self._start_failed(worker, why, now, out)
        self._assign_jobs(now, out)

    def _lost(self, job: Job, reason: str, why: str, now: float, out: list[Instruction]) -> None:
        """Queue a job again whose worker has died, or give it up."""
        job.deaths += 1
        job.worker = None
        if job.deaths < MAX_DEATHS and reason != "timeout":  # a second try would take as long
            out.append(job.move("lose-worker", now, why))
            out.append(Count(job.uid, "retried"))
            self._queue.add(job)
            return
        text = (
            f"The compile took longer than {self.limits.job_timeout_s:g} s"
            if reason == "timeout"
            else f"The graph killed {job.deaths} workers; the last: {why}"
        )
        out.append(job.move("quarantine", now, why))
        out.append(Count(job.uid, "failed"))
        self._quarantined.start(job.flight, now + self.limits.quarantine_s, text)
        self._end(job, out, wire.Rejected("key-quarantined", text, "It is tried again later", key=job.submit.key))

    def _start_failed(self, worker: Worker, why: str, now: float, out: list[Instruction]) -> None:
        seat = worker.seat
        if not any(job.seat == seat for job in self._queue.of(seat.uid)):
            # It was started for an expected graph: no graph is refused for that, but none is expected so for a while.
            self._expected_in_vain.start(seat, now + self.limits.start_refused_s, why)
            return
        self._start_failures[seat] += 1
        if self._start_failures[seat] < MAX_START_FAILURES:
            return
        del self._start_failures[seat]
        text = f"No worker starts with {worker.interpreter.executable}: {why}"
        self._refused.start(seat, now + self.limits.start_refused_s, text)
        for job in [job for job in self._queue.of(seat.uid) if job.seat == seat]:
            self._queue.remove(job)
            out.append(job.move("refuse", now, why))
            out.append(Count(job.uid, "failed"))
            self._end(
                job, out, wire.Rejected("worker-cannot-start", text, "See `precompiled doctor`", key=job.submit.key)
            )

    def _cancelled(self, uid: int, ids: set[str], now: float, out: list[Instruction]) -> None:
        """Give up the jobs that only these submits asked for.

        The worker of a running job is killed: a compile cannot be interrupted, and it holds the slot that the graphs of
        the new source wait for.
        """
        for job in [job for job in self.jobs.values() if job.uid == uid and ids & job.interested.keys()]:
            for name in ids & job.interested.keys():
                del job.interested[name]
            if not job.interested:
                self._give_up(job, CANCELLED, now, out)
        self._assign_jobs(now, out)

    def _give_up(self, job: Job, told: wire.Rejected, now: float, out: list[Instruction]) -> None:
        if job.state == "queued":
            self._queue.remove(job)
        else:
            runner = self._runner_of(job)
            runner.job = None
            if runner.state == "busy":  # else it is being ended already, for its time or its memory
                out.append(runner.kill("cancelled", now))
        out.append(job.move("cancel", now))
        self._end(job, out, told)

    def _asked(self, event: Asked, now: float, out: list[Instruction]) -> None:
        """Somebody's word on keys, by their beginnings: his own jobs, or anybody's where ``uid`` is None."""
        beginnings = tuple(event.message.keys)

        def meant(flight: Flight) -> bool:
            return event.uid in (None, flight[0]) and flight[2].startswith(beginnings)

        if isinstance(event.message, wire.GiveUp):
            found = [flight for flight in self.jobs if meant(flight)]
            for flight in found:
                self._give_up(self.jobs[flight], GIVEN_UP, now, out)
            self._assign_jobs(now, out)
        else:
            found = [flight for flight in self._quarantined.names() if meant(flight)]
            for flight in found:
                self._quarantined.end(flight)
        out.append(Reply(event.client, wire.Changed(sorted({key for _, _, key in found}))))

    def _tick(self, now: float, out: list[Instruction]) -> None:
        limits = self.limits
        for job in [job for job in self._queue if not job.waiting and now - job.since >= limits.age_s]:
            self._queue.wait_for(job)
            job.story.append((now, "age"))
        for runner in self._runners():
            if now >= runner.kill_at(limits):
                out.append(runner.kill("start-timeout" if runner.state == "starting" else "timeout", now))
        idle = [worker for worker in self.workers.values() if worker.state == "idle"]
        of_seats = Counter(worker.seat for worker in idle)
        for worker in sorted(idle, key=lambda w: w.since):
            bound = limits.worker_idle_s
            if of_seats[worker.seat] > 1:
                bound = min(bound, limits.extra_idle_s)
            if now - worker.since >= bound:
                # The expected graph never came: none is expected so for a while.
                if worker.jobs_done == 0:
                    self._expected_in_vain.start(worker.seat, now + EXPECTED_IN_VAIN_S, "idle")
                of_seats[worker.seat] -= 1
                out.append(worker.stop("idle", now))
        self.couriers.tick(now, out)
        for table in (self._quarantined, self._refused, self._expected_in_vain):
            table.tick(now)
        self._assign_jobs(now, out)

    def _shut_down(self, now: float, out: list[Instruction]) -> None:
        if self.stopping:
            return
        self.stopping = True
        for job in list(self.jobs.values()):
            if job.state == "queued":
                self._queue.remove(job)
            else:
                self._runner_of(job).job = None
            out.append(job.move("shut-down", now))
            self._end(job, out, STOPPING)
        for runner in self._runners():
            if runner.state == "idle":
                out.append(runner.stop("shut-down", now))
            elif runner.state != "stopping":
                out.append(runner.kill("shut-down", now))

    # ------------------------------------------------ jobs to workers

    def _assign_jobs(self, now: float, out: list[Instruction]) -> None:
        if self.stopping:
            return
        while self._slots_used() < self.limits.slots and self._place_one(self._in_order(now), now, out):
            pass
        self._share_slots(now, out)
        self._offer_jobs(now, out)

    def _in_order(self, now: float) -> Iterator[Job]:
        """The queued jobs as they get slots: first those of users who have waited and have nothing under way."""
        first = shares.claims(self._queue, self.workers, self.limits, now)
        yield from first
        yield from (job for job in self._queue.ready(now) if job not in first)

    def _share_slots(self, now: float, out: list[Instruction]) -> None:
        """Give users with nothing under way a slot above the limit, and where no process is left, another's place."""
        while claims := shares.claims(self._queue, self.workers, self.limits, now):
            if self._slots_used() >= self.limits.processes or not self._place_one(iter(claims), now, out):
                break
        leaving = sum(worker.makes_room for worker in self.workers.values())
        for job in claims[leaving:]:
            worker = shares.longest_running(self.workers.values(), job.uid, self.limits, now)
            if worker is None:
                return
            other, worker.job = worker.job, None
            out.append(worker.kill("displaced", now))
            worker.makes_room = True
            if other is not None:
                out.append(other.move("displace", now, f"for uid {job.uid}"))
                other.worker, other.attempt, other.displaced = None, other.attempt - 1, other.displaced + 1
                self._queue.add(other)
            self._queue.end_turn(worker.seat.uid)

    def _offer_jobs(self, now: float, out: list[Instruction]) -> None:
        """Give couriers what no slot is free for, where its user has a farm."""
        starting = Counter(worker.seat for worker in self.workers.values() if worker.state == "starting")
        queued = list(self._queue.ready(now))
        for job, courier in self.couriers.offers(queued, starting, self._numbers, now, out):
            offer = wire.Offer(job.submit.environment, self.limits.job_timeout_s)
            self._run(job, courier, now, out, offer)

    def _slots_used(self) -> int:
        return sum(w.state in ("starting", "busy") or w.makes_room for w in self.workers.values())

    def _room(self) -> int:
        return self.limits.processes - len(self.workers)

    def _place_one(self, jobs: Iterator[Job], now: float, out: list[Instruction]) -> bool:
        """Use one free slot for the first of these queued jobs that can have it; whether one could."""
        idle: dict[Seat, Worker] = {}
        promised: Counter[Seat] = Counter()  # starting workers, each for one job
        for worker in self.workers.values():
            if worker.state == "idle" and (worker.seat not in idle or worker.since > idle[worker.seat].since):
                idle[worker.seat] = worker  # the most recently used, so that the others may time out
            elif worker.state == "starting":
                promised[worker.seat] += 1
        room = self._room()
        leaving = sum(w.makes_room for w in self.workers.values())
        for job in jobs:
            if (ready := idle.get(job.seat)) is not None:
                self._run(job, ready, now, out)
                return True
            if promised[job.seat] > 0:
                promised[job.seat] -= 1
            elif room > 0 and now < self._starts_at:
                continue
            elif room > 0:
                self._start(job.seat, job.gid, job.submit.environment, self._yields_until(job), now, out)
                return True
            elif leaving > 0:
                leaving -= 1
            elif (victim := self._victim()) is not None:
                out.append(victim.stop("evicted", now))
                victim.makes_room = True
                return True
        return False

    def _victim(self) -> Worker | None:
        """The least recently used idle worker, those without a queued job first."""
        wanted = {job.seat for job in self._queue}
        idle = [w for w in self.workers.values() if w.state == "idle"]
        return min(idle, key=lambda w: (w.seat in wanted, w.since), default=None)

    def _run(
        self, job: Job, runner: Runner, now: float, out: list[Instruction], offer: wire.Offer | None = None
    ) -> None:
        self._queue.serve(job)
        job.attempt += 1
        job.started = now
        job.worker = runner.number
        runner.job = job
        runner.move("assign", now)
        out.append(job.move("assign", now, f"worker {runner.number}"))
        submit = job.submit
        order = wire.Job(
            id=submit.id, key=submit.key, store=submit.store, device=submit.device, graph=job.blob,
            compile_threads=self._threads(now), failure_ttl_s=self.limits.failure_ttl_s,
            name=submit.name, attempt=job.attempt, cache_max_bytes=self.limits.cache_max_bytes,
            cache_max_inodes=self.limits.cache_max_inodes, base=submit.base, queued_s=now - job.since, may_park=True,
            tune=submit.tune, offer=offer,
        )  # fmt: skip
        out.append(RunJob(runner.number, order, self._yields_until(job)))

    def _threads(self, now: float) -> int:
        """Threads of a compile that starts now: all cores where it is alone, its share where others run or are queued.

        A compile that has all cores keeps them while others start, until its end.
        """
        limits = self.limits
        compiles = min(limits.slots, self._slots_used() + sum(1 for _ in self._queue.ready(now)))
        return limits.compile_threads or max(1, limits.cores // max(1, compiles))

    def _start(
        self, seat: Seat, gid: int, interpreter: wire.Interpreter, yields: float, now: float, out: list[Instruction]
    ) -> None:
        worker = Worker(next(self._numbers), seat, interpreter, since=now, story=[(now, "start")])
        self.workers[worker.number] = worker
        out.append(StartWorker(worker.number, seat.uid, gid, interpreter, seat.device, yields))

    def _yields_until(self, job: Job) -> float:
        """Until when a job gives way: its client's program is in its first step, but where the client waits."""
        return 0.0 if job.waiting else job.since + self.limits.yield_s

    def _runners(self) -> list[Runner]:
        return [*self.workers.values(), *self.couriers]

    def _runner_of(self, job: Job) -> Runner:
        """The process that has a running job."""
        assert job.worker is not None
        return self.couriers.get(job.worker) or self.workers[job.worker]

    # ------------------------------------------------ ends

    def _retry_after(self) -> float:
        """Seconds until one of the queued jobs has probably left the queue."""
        return min(60.0, max(1.0, self._mean_job_s / self.limits.slots))

    def _interest(self, job: Job, event: Submitted) -> None:
        message = event.message
        if job.interested and message.id not in job.interested:
            of_user = sum(len(other.interested) for other in self.jobs.values() if other.uid == job.uid)
            if len(job.interested) >= MAX_INTERESTED or of_user >= MAX_INTERESTED_OF_USER:
                return
        job.interested[message.id] = event.client

    def _end(self, job: Job, out: list[Instruction], message: wire.Accepted | wire.Busy | wire.Rejected) -> None:
        """Forget a job that has ended, and tell the clients that asked for it."""
        del self.jobs[job.flight]
        for name, client in job.interested.items():
            if isinstance(message, wire.Accepted):
                told: wire.DaemonMessage = wire.Accepted(name, message.key, message.state)
            elif isinstance(message, wire.Busy):
                told = wire.Busy(name, message.key, message.retry_after_s)
            else:
                told = wire.Rejected(message.code, message.message, message.action, name, job.submit.key)
            out.append(Reply(client, told))
        job.blob = b""
        job.interested = {}
        self.finished.append(job)


def _why(runner: Runner, event: WorkerGone) -> str:
    reason = runner.stop_reason or event.reason
    return f"{reason}: {event.detail}" if event.detail else reason
