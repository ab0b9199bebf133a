"""The scheduler's input (events), output (instructions) and limits. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from precompiled import wire


@dataclass(frozen=True)
class Limits:
    """Limits on what the scheduler may start and hold. Times are in seconds."""

    slots: int = 1  # workers that start or compile at the same time
    processes: int = 4  # workers that exist at the same time
    cores: int = 2  # cores that the running compiles share
    compile_threads: int = 0  # threads of one compile; 0: its share of the cores
    max_queue: int = 1000
    max_queue_per_uid: int = 500
    max_queue_bytes: int = 2 << 30  # queued graphs in the daemon's memory, all users; one user may have half of it
    job_timeout_s: float = 1800.0
    yield_s: float = 1.0  # a background job runs at low priority for this long after its submit
    start_timeout_s: float = 300.0
    worker_idle_s: float = 900.0  # the last idle worker of a seat is stopped after this time
    idle_after_s: float = 5.0  # a worker without a job for this time may begin a job of idle priority
    extra_idle_s: float = 30.0  # further idle workers of a seat are stopped after this time
    # a worker is replaced after this many jobs, since it cannot unload modules and libraries
    jobs_per_worker: int = 200
    quarantine_s: float = 3600.0
    start_refused_s: float = 60.0  # how long a seat is not retried after its workers did not start
    failure_ttl_s: float = 3600.0
    cache_max_bytes: int = 20 << 30  # limit for each store
    cache_max_inodes: int = 200_000
    share_s: float = 3.0  # a user without a slot gets one above the limit after waiting this long
    # if the extra slot needs a process and no further process may run, a job that has run longer than this time is
    # displaced
    share_run_s: float = 60.0
    age_s: float = 60.0  # a background job queued for this long becomes a waiting client's job


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Submitted:
    """A peer requests a compile. ``uid`` and ``gid`` come from the kernel; replies go to ``client``."""

    client: bytes
    uid: int
    gid: int
    message: wire.Submit
    blob: bytes


@dataclass(frozen=True)
class Expected:
    """A client will probably submit a graph for this user, interpreter and device within seconds.

    ``tracing``: Dynamo traces the graph. Otherwise, the client has imported torch.
    """

    uid: int
    gid: int
    interpreter: wire.Interpreter
    device: str
    store: str = ""
    tracing: bool = True


@dataclass(frozen=True)
class WorkerReady:
    worker: int


@dataclass(frozen=True)
class WorkerLowered:
    worker: int
    lowered: wire.Lowered


@dataclass(frozen=True)
class WorkerDone:
    worker: int
    finished: wire.Finished


@dataclass(frozen=True)
class WorkerGone:
    """The worker's process tree has ended, or never started.

    ``reason``: a code. ``detail``: text for people. ``unread``: the worker had not read its job to the end.
    """

    worker: int
    reason: str
    detail: str = ""
    unread: bool = False


@dataclass(frozen=True)
class Cancelled:
    """The user withdraws these Submit messages, because the sources of a watch have changed."""

    uid: int
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Asked:
    """A peer cancels jobs, or takes keys out of quarantine.

    ``uid``: the user who owns these jobs and keys; None: all users.
    """

    client: bytes
    uid: int | None
    message: wire.GiveUp | wire.Retry


@dataclass(frozen=True)
class Tick:
    """Time has passed, so a limit may have been reached."""


@dataclass(frozen=True)
class ShutDown:
    """Refuse new submits, drop all jobs, end all workers."""


Event = (
    Submitted | Expected | WorkerReady | WorkerLowered | WorkerDone | WorkerGone | Cancelled | Asked | Tick | ShutDown
)

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
    yields_until: float = 0.0  # the job gives way to other programs until this time (monotonic seconds)
    store: str = ""  # the store of the expected graph, for a worker that starts ahead of its first job


@dataclass(frozen=True)
class RunJob:
    worker: int
    job: wire.Job
    yields_until: float = 0.0


@dataclass(frozen=True)
class SetPriority:
    """A client with a higher priority has joined the job that this worker runs, or needs this spare worker."""

    worker: int
    yields_until: float = 0.0


@dataclass(frozen=True)
class StopWorker:
    """Ask an idle worker to exit."""

    worker: int
    reason: str


@dataclass(frozen=True)
class KillWorker:
    """Kill the worker's process tree at once."""

    worker: int
    reason: str


@dataclass(frozen=True)
class Count:
    """Add to a counter of ``uid`` (a field of wire.StatsReply). ``reason``: for counters that are split by reason."""

    uid: int
    counter: str
    amount: float = 1
    reason: str = ""


@dataclass(frozen=True)
class Moved:
    """A job has entered ``state``; for the log and the watcher. ``ids``: the ids of the Submit messages that requested
    the job.
    """

    job: str
    key: str
    uid: int
    state: str
    why: str
    ids: tuple[str, ...] = ()


Instruction = Reply | StartWorker | RunJob | SetPriority | StopWorker | KillWorker | Count | Moved
