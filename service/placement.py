"""Assigns queued jobs to workers: idle workers, new workers, or new workers that replace idle ones. Pure.

A *slot* is the right to start or compile. A starting or busy worker holds a slot, unless its job has idle priority. A
worker that is stopped to make room for another worker also holds a slot. In addition, as many jobs of idle priority may
run as there are slots. A *process* is any worker that exists; most processes are idle and warm. ``Limits.slots`` and
``Limits.processes`` limit their numbers; service/shares.py decides which user may have a slot above the limit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from precompiled.service import shares
from precompiled.service.cooldowns import Cooldowns
from precompiled.service.events import Expected, Instruction, Limits, RunJob, SetPriority, StartWorker
from precompiled.service.job_queue import JobQueue
from precompiled.service.job_states import Priority, ScheduledJob, Seat
from precompiled.service.start_failures import StartFailures
from precompiled.service.workers import Runner, Worker

from precompiled import wire

IDLE_YIELD_S = 60.0  # a job of idle priority runs at low priority for this many seconds after its start


class Placement:
    """The workers, and the jobs that they get."""

    def __init__(self, limits: Limits, queue: JobQueue, failures: StartFailures, numbers: Iterator[int]) -> None:
        self._limits = limits
        self._queue = queue
        self._failures = failures
        self._numbers = numbers
        self._crowded: Cooldowns[Seat] = Cooldowns()
        self.workers: dict[int, Worker] = {}

    # ------------------------------------------------ slots and processes

    @property
    def _slots_used(self) -> int:
        return sum(w.is_under_way or w.makes_room for w in self.workers.values())

    @property
    def _room(self) -> int:
        """How many workers may be added to the existing ones."""
        return self._limits.processes - len(self.workers)

    def starting(self) -> Counter[Seat]:
        """How many workers are starting, per seat. Each starting worker will take one job."""
        return Counter(worker.seat for worker in self.workers.values() if worker.state == "starting")

    def next_wakes(self) -> list[float]:
        """The times at which ``tick`` or ``assign_jobs`` may have something to do without another event."""
        limits = self._limits
        idle = [worker.since for worker in self.workers.values() if worker.state == "idle"]
        times = [
            since + bound
            for since in idle
            for bound in (limits.idle_after_s, limits.extra_idle_s, limits.worker_idle_s)
        ]
        return [*times, self._failures.pause_until]

    def tick(self, now: float, out: list[Instruction]) -> None:
        """Stop idle workers. The last idle worker of a seat stays longer than the seat's other workers."""
        limits = self._limits
        self._crowded.tick(now)
        idle = [worker for worker in self.workers.values() if worker.state == "idle"]
        of_seats = Counter(worker.seat for worker in idle)
        for worker in sorted(idle, key=lambda w: w.since):
            extra = of_seats[worker.seat] > 1
            bound = min(limits.worker_idle_s, limits.extra_idle_s) if extra else limits.worker_idle_s
            if now - worker.since >= bound:
                if worker.jobs_done == 0:
                    self._failures.got_no_job(worker.seat, now, spare=worker.is_spare)
                of_seats[worker.seat] -= 1
                out.append(worker.stop("idle", now))

    def retire(self, worker: Worker, reason: str, now: float, out: list[Instruction]) -> None:
        """Stop a worker once it has no job.

        If jobs are queued and the limit of processes is reached, the next worker can start only after this worker has
        ended. Then this worker's slot is kept for the next worker. Otherwise a warm worker would be evicted.
        """
        worker.leaves = reason
        if worker.state != "idle":
            return
        out.append(worker.stop(reason, now))
        worker.makes_room = len(self._queue) > 0 and self._room <= 0

    def start_ahead(self, event: Expected, now: float, out: list[Instruction]) -> None:
        """Start a worker for an expected graph, if a slot and a process are free.

        If the program has only imported torch, this is a *spare* worker. At most one exists. Its seat may be wrong: a
        program can set OMP_NUM_THREADS after the import, for example. So it takes no slot, leaves room for one more
        process, and runs at low priority until ``claim``.
        """
        seat = Seat.of(event.uid, event.device, event.interpreter)
        spare = not event.tracing
        if any(worker.seat == seat for worker in self.workers.values()):
            if not spare:
                self.claim(seat, now + self._limits.yield_s, out)
            return
        if spare and (self._room < 2 or any(worker.is_spare for worker in self.workers.values())):
            return
        may = self._failures.may_start_ahead(seat, now, spare=spare)
        if may and self._slots_used < self._limits.slots and self._room > 0:
            store = event.store if event.device == "cpu" else ""  # only CPU kernels need the C++ compiler
            yields = now + (self._limits.worker_idle_s if spare else self._limits.yield_s)
            worker = self._start(seat, event.gid, event.interpreter, yields, now, out, store)
            worker.is_spare = spare

    def claim(self, seat: Seat, yields_until: float, out: list[Instruction]) -> None:
        """A graph of this seat is traced or submitted, so the seat's spare worker is an ordinary worker from now on."""
        for worker in self.workers.values():
            if worker.is_spare and worker.seat == seat:
                worker.is_spare = False
                out.append(SetPriority(worker.number, yields_until))

    # ------------------------------------------------ jobs to workers

    def assign_jobs(self, now: float, out: list[Instruction]) -> None:
        self._overlap(now, out)
        while self._slots_used < self._limits.slots and self._place_one(self._in_order(now), now, out):
            self._overlap(now, out)
        self._share_slots(now, out)

    def _overlap(self, now: float, out: list[Instruction]) -> None:
        """Give the first queued job to a worker whose own job needs only the C++ compilers, unless an idle worker can
        take it.
        """
        if not any(job.is_lowered for worker in self.workers.values() for job in worker.jobs):
            return
        has_slot = self._slots_used < self._limits.slots
        while (job := next(self._in_order(now), None)) is not None and not self._crowded.find(job.seat, now):
            if has_slot and any(w.state == "idle" and w.seat == job.seat for w in self.workers.values()):
                return
            worker = next((w for w in self.workers.values() if w.may_overlap(job, self._limits)), None)
            if worker is None:
                return
            self.run(job, worker, now, out)

    def died(self, worker: Worker, why: str, now: float) -> None:
        """After the death of a worker with two jobs, the workers of its seat run one job at a time for a while."""
        if len(worker.jobs) > 1:
            self._crowded.start(worker.seat, now + self._limits.quarantine_s, why)

    def _in_order(self, now: float) -> Iterator[ScheduledJob]:
        """The queued jobs in the order in which they get slots: first those with a claim (shares.claims)."""
        first = shares.claims(self._queue, self.workers, self._limits, now)
        yield from first
        idle_jobs = sum(worker.is_idle_priority for worker in self.workers.values())
        for job in self._queue.ready(now):
            if job not in first and (job.priority is not Priority.IDLE or idle_jobs < self._limits.slots):
                yield job

    def _share_slots(self, now: float, out: list[Instruction]) -> None:
        """Give a slot above the limit to each user who has none. If the limit of processes is reached, stop a worker of
        a different user.
        """
        while claims := shares.claims(self._queue, self.workers, self._limits, now):
            if self._slots_used >= self._limits.processes or not self._place_one(iter(claims), now, out):
                break
        leaving = sum(worker.makes_room for worker in self.workers.values())
        for job in claims[leaving:]:
            worker = shares.longest_running(self.workers.values(), job.uid, self._limits, now)
            if worker is None:
                return
            out.append(worker.kill("displaced", now))
            worker.makes_room = True
            others, worker.jobs = worker.jobs, []
            for other in others:
                out.append(other.move("displace", now, f"for uid {job.uid}"))
                other.worker, other.attempt, other.displaced = None, other.attempt - 1, other.displaced + 1
                self._queue.add(other)
            self._queue.end_turn(worker.seat.uid)

    def _place_one(self, jobs: Iterator[ScheduledJob], now: float, out: list[Instruction]) -> bool:
        """Use one free slot for the first of these jobs that can run. Returns whether a job could run."""
        idle: defaultdict[Seat, list[Worker]] = defaultdict(list)  # the most recently used worker is the last
        promised = self.starting()
        for worker in sorted(self.workers.values(), key=lambda w: w.since):
            if worker.state == "idle":
                idle[worker.seat].append(worker)
        room = self._room
        leaving = sum(w.makes_room for w in self.workers.values())
        for job in jobs:
            if ready := idle[job.seat]:
                is_idle = job.priority is Priority.IDLE
                if is_idle and now - ready[0].since < self._limits.idle_after_s:
                    continue  # the client may soon wait for its next graph, and another worker would need to start
                self.run(job, ready[0 if is_idle else -1], now, out)  # so that the other workers time out
                return True
            if promised[job.seat] > 0:
                promised[job.seat] -= 1
            elif room > 0 and now < self._failures.pause_until:
                continue
            elif room > 0:
                self._start(job.seat, job.gid, job.submit.environment, self._start_yields_until(job), now, out)
                return True
            elif leaving > 0:
                leaving -= 1
            elif (victim := self._victim(job, now)) is not None:
                out.append(victim.stop("evicted", now))
                victim.makes_room = True
                return True
        return False

    def _victim(self, job: ScheduledJob, now: float) -> Worker | None:
        """The worker to evict for ``job``: the least recently used idle one, preferably of a seat without queued jobs.

        Jobs of idle priority would otherwise evict each other's workers before one of them begins.
        """
        wanted = {other.seat for other in self._queue}
        since = now - self._limits.idle_after_s if job.priority is Priority.IDLE else now
        idle = [w for w in self.workers.values() if w.state == "idle" and w.since <= since]
        return min(idle, key=lambda w: (w.seat in wanted, w.since), default=None)

    def run(
        self, job: ScheduledJob, runner: Runner, now: float, out: list[Instruction], offer: wire.Offer | None = None
    ) -> None:
        self._queue.serve(job)
        job.attempt += 1
        job.started = now
        job.worker = runner.number
        runner.take(job, now)
        out.append(job.move("assign", now, f"worker {runner.number}"))
        submit = job.submit
        order = wire.Job(
            id=submit.id,
            key=submit.key,
            store=submit.store,
            device=submit.device,
            graph=job.blob,
            compile_threads=self._threads(now),
            failure_ttl_s=self._limits.failure_ttl_s,
            name=submit.name,
            attempt=job.attempt,
            cache_max_bytes=self._limits.cache_max_bytes,
            cache_max_inodes=self._limits.cache_max_inodes,
            base=submit.base,
            queued_s=now - job.since,
            may_park=True,
            may_overlap=offer is None,
            tune=submit.tune,
            offer=offer,
        )
        out.append(RunJob(runner.number, order, self.yields_until(job, now)))

    def _threads(self, now: float) -> int:
        """Threads of a compile that starts now: the cores divided by the running and queued compiles.

        The number does not change during a compile: a compile that started alone keeps all cores.
        """
        limits = self._limits
        compiles = min(limits.slots, self._slots_used + sum(1 for _ in self._queue.ready(now)))
        return limits.compile_threads or max(1, limits.cores // max(1, compiles))

    def _start(
        self,
        seat: Seat,
        gid: int,
        interpreter: wire.Interpreter,
        yields: float,
        now: float,
        out: list[Instruction],
        store: str = "",
    ) -> Worker:
        worker = Worker(next(self._numbers), seat, interpreter, since=now, story=[(now, "start")])
        self.workers[worker.number] = worker
        out.append(StartWorker(worker.number, seat.uid, gid, interpreter, seat.device, yields, store))
        return worker

    def _start_yields_until(self, job: ScheduledJob) -> float:
        """The time until which a worker that is started for this job runs at low priority; 0 if a client waits for the
        job.
        """
        return 0.0 if job.priority is Priority.WAITING else job.since + self._limits.yield_s

    def yields_until(self, job: ScheduledJob, now: float) -> float:
        """The time until which the job's worker runs at low priority, to leave the cores to the client's program.

        The low priority also ends for idle jobs, because on a busy host a process at low priority may get no core.
        """
        if job.priority is Priority.IDLE:
            return now + IDLE_YIELD_S if self._limits.yield_s > 0 else 0.0
        return self._start_yields_until(job)
