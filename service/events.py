"""The scheduler's input (events), output (instructions) and limits. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from precompiled import wire


@dataclass(frozen=True)
class Limits:
    """How much the scheduler may start and hold; times in seconds."""

    slots: int = 1  # workers that use the processors at the same time
    processes: int = 4  # workers that exist at the same time
    cores: int = 2  # shared out among the compiles that run
    compile_threads: int = 0  # of one compile; 0: its share of the cores
    max_queue: int = 1000
    max_queue_per_uid: int = 500
    max_queue_bytes: int = 2 << 30  # graphs held in the daemon's memory, over all users; half of it for one
    job_timeout_s: float = 1800.0
    yield_s: float = 4.0  # after its submit, a background job gives way to the programs that run
    start_timeout_s: float = 300.0
    worker_idle_s: float = 900.0  # the last worker of a seat
    extra_idle_s: float = 30.0  # further idle workers of one seat
    jobs_per_worker: int = 200  # then a worker is replaced: it cannot unload modules and libraries
    quarantine_s: float = 3600.0
    start_refused_s: float = 60.0  # a seat that cannot start a worker is not tried again for this long
    failure_ttl_s: float = 3600.0
    cache_max_bytes: int = 20 << 30  # per store
    cache_max_inodes: int = 200_000
    share_s: float = 3.0  # a user with nothing under way waits so long for a slot, and then gets one above the limit
    share_run_s: float = 60.0  # where no process is left for that, a job that has run for longer gives its place
    age_s: float = 60.0  # a background job that is queued for this long goes with the jobs of waiting clients


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Submitted:
    """A peer, known to the kernel as ``uid`` and ``gid``, asks for a compile. ``client`` is where replies go."""

    client: bytes
    uid: int
    gid: int
    message: wire.Submit
    blob: bytes


@dataclass(frozen=True)
class Expected:
    """A graph for a worker of this user, interpreter and device may be submitted in some seconds."""

    uid: int
    gid: int
    interpreter: wire.Interpreter
    device: str


@dataclass(frozen=True)
class WorkerReady:
    worker: int


@dataclass(frozen=True)
class WorkerDone:
    worker: int
    finished: wire.Finished


@dataclass(frozen=True)
class WorkerGone:
    """The worker's process tree does not exist any more, or never did. ``reason``: a code; ``detail``: for people."""

    worker: int
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Cancelled:
    """The user does not want these submits any more (a watch whose sources have changed)."""

    uid: int
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """A peer wants jobs given up, or keys out of quarantine. ``uid``: whose; None: anybody's."""

    client: bytes
    uid: int | None
    message: wire.GiveUp | wire.Retry


@dataclass(frozen=True)
class Tick:
    """The time may have passed a limit."""


@dataclass(frozen=True)
class ShutDown:
    """Refuse new submits, give up all jobs, end all workers."""


Event = Submitted | Expected | WorkerReady | WorkerDone | WorkerGone | Cancelled | Asked | Tick | ShutDown

# ---------------------------------------------------------------- instructions

COURIER = "farm"  # the device of a StartWorker that starts a courier; `status` shows it


@dataclass(frozen=True)
class Reply:
    client: bytes
    message: wire.DaemonMessage


@dataclass(frozen=True)
class StartWorker:
    worker: int
    uid: int
    gid: int
    interpreter: wire.Interpreter
    device: str
    yields_until: float = 0.0  # it gives way to other programs until then (monotonic seconds)


@dataclass(frozen=True)
class RunJob:
    worker: int
    job: wire.Job
    yields_until: float = 0.0


@dataclass(frozen=True)
class StopWorker:
    """Ask an idle worker to exit."""

    worker: int
    reason: str


@dataclass(frozen=True)
class KillWorker:
    """End the worker's process tree at once."""

    worker: int
    reason: str


@dataclass(frozen=True)
class Count:
    """Add to a counter of ``uid``, a field of wire.StatsReply; ``reason``: for the counters that count by reason."""

    uid: int
    counter: str
    amount: float = 1
    reason: str = ""


@dataclass(frozen=True)
class Moved:
    """A job came to ``state``: for the log, and for the watcher. ``ids``: of the submits that asked for it."""

    job: str
    key: str
    uid: int
    state: str
    why: str
    ids: tuple[str, ...] = ()


Instruction = Reply | StartWorker | RunJob | StopWorker | KillWorker | Count | Moved
