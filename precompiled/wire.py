"""Defines the messages of the protocol between clients, daemon, workers and watcher.

Client and daemon (ZeroMQ DEALER and ROUTER over ``ipc://``) send two or three frames::

    PREAMBLE    b"precompiled/<protocol version>"   its form never changes, so peers of all versions can read it
    message     msgpack map with a "type"           one of ClientMessage or DaemonMessage below
    blob        opaque bytes                        only after Submit: the encoded graph, never decoded by the daemon

Daemon and worker use a Unix stream socket that the worker inherits. Each message has a 4-byte big-endian length, then a
msgpack map with a "type" (PoolMessage or WorkerMessage below). Daemon and watcher use the same form for ToWatcher and
FromWatcher.

A peer with another protocol version gets ``Rejected(code="protocol-version")``, whose form is frozen. Sizes are checked
before anything is allocated: against ``MAX_MESSAGE_BYTES`` for messages, against the daemon's ``max_graph_bytes`` for
blobs.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec

from precompiled.core.errors import WireError
from precompiled.version import VERSION

PROTOCOL = 2
PREAMBLE = b"precompiled/%d" % PROTOCOL
MAX_MESSAGE_BYTES = 1 << 20
LENGTH_BYTES = 4


class Message(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, forbid_unknown_fields=False):
    """Base of all messages. A decoder ignores unknown fields, so a minor version may add fields."""


class Interpreter(msgspec.Struct, frozen=True):
    """The interpreter in which a worker must run. A worker serves jobs of a single interpreter."""

    executable: str  # sys.executable of the client
    prefix: str  # sys.prefix of the client (its virtual environment)
    python: str  # "3.11.7"
    torch: str  # torch.__version__, including the local part of its build
    triton: str  # triton.__version__, or "" without triton
    variables: dict[str, str]  # only the environment variables that a compile depends on
    # The version of precompiled in that interpreter. After an upgrade in place, older workers get no further jobs.
    precompiled: str = VERSION
    # Digests of the modules that a worker imports for custom ops, and of the ops (lib::name) that the worker itself
    # defines. A worker with other digests is not reused.
    modules: dict[str, str] = {}


# ---------------------------------------------------------------- client -> daemon


class Submit(Message, frozen=True):
    """Compile this graph unless it is already compiled, queued or running. The graph is in the blob frame."""

    id: str  # names the submit in the artifact, in status and in the logs
    key: str
    store: str  # absolute path of the client's store; a worker with the client's uid publishes there
    environment: Interpreter
    device: str  # "cpu", or "cuda:<GPU UUID>"
    name: str = ""  # the graph's name for people, e.g. "GPT2Model.forward [0/0]"
    waiting: bool = False  # a client waits for the graph, so it precedes background jobs
    idle: bool = False  # the client already runs compiled code (in pieces), so all other jobs precede this one
    base: list[str] = []  # absolute paths of the client's base stores; their graphs are not compiled
    farm: bool = False  # the daemon may offer the graph to the client's farm if no worker is free (docs/guides/farm.md)
    tune: bool = False  # recompile if the artifact was made without measurements (docs/guides/targets.md)


class Tally(Message, frozen=True):
    """A client's counts since its last Tally. Only a Tally reports hits to the daemon. Best effort, no reply."""

    pid: int
    hits: int = 0
    misses: int = 0
    swapped: int = 0
    saved_s: float = 0.0  # compile seconds of hits
    untraced: int = 0  # frames that a package served, so that Dynamo did not trace them
    traced: int = 0  # frames that Dynamo traced while packages were on
    not_kept: dict[str, int] = {}  # maps a reason code to the number of frames that no package can hold
    from_base: dict[str, int] = {}  # maps a base store's path to the number of graphs loaded from it
    fallbacks: dict[str, int] = {}
    bypassed: dict[str, int] = {}
    not_served: dict[str, int] = {}  # maps a reason code to the number of graphs whose call raised due to ``require``


class Expect(Message, frozen=True):
    """The store is empty, and a program has imported torch or Dynamo traces a graph. So a worker may start now. Best
    effort, no reply.
    """

    environment: Interpreter
    device: str  # as in Submit; the client guesses it
    store: str = ""  # as in Submit; the worker prepares its C++ builds in this store
    tracing: bool = True  # whether Dynamo traces. A program that has only imported torch may never submit a graph


class Status(Message, frozen=True):
    """Request a StatusReply."""


class Stats(Message, frozen=True):
    """Request a StatsReply."""


class Stop(Message, frozen=True):
    """Stop the workers and exit, without finishing jobs. Allowed for the daemon's own uid and root."""


class Registration(msgspec.Struct, frozen=True):
    """A command or entry point whose graphs are captured again after each edit (docs/guides/watch.md). The command's
    code runs as the user who registers it.
    """

    kind: Literal["entry", "run"]
    command: list[str]  # for an entry point ["pkg.module:factory"] or ["pkg.module"], for a run its argv
    executable: str  # the interpreter that calls entry points
    directory: str  # working directory
    store: str  # the store where this user's runs look up artifacts
    variables: dict[str, str]  # all environment variables, since the command is the user's own
    files: list[str] = []  # absolute paths of other files that the command depends on, such as configuration
    time_limit_s: float = 600.0  # limit for one capture
    # Limit of the resident memory of a capture's process tree; 0: half of the host's memory.
    memory_limit_bytes: int = 0
    steps: int = 3  # a run is ended after this many optimizer steps without a new graph


class Watch(Message, frozen=True):
    """Register a watch, or replace the watch with the same id. The reply is Watching or Rejected."""

    registration: Registration


class Unwatch(Message, frozen=True):
    """Remove these watches. The reply is Watching, with the watches that existed."""

    ids: list[str]


class Watches(Message, frozen=True):
    """Request a WatchesReply."""


# Prefixes of keys. The number of prefixes is limited, because the daemon compares each prefix with each job. msgspec
# checks the limit before it decodes the list.
_Beginnings = Annotated[list[Annotated[str, msgspec.Meta(max_length=256)]], msgspec.Meta(max_length=256)]


class GiveUp(Message, frozen=True):
    """Cancel all jobs of the requesting user whose keys have these prefixes. The reply is Changed."""

    keys: _Beginnings


class Retry(Message, frozen=True):
    """Remove keys with these prefixes from quarantine, so that the next submit compiles them. The reply is Changed."""

    keys: _Beginnings


ClientMessage = Submit | Tally | Expect | Status | Stats | Stop | Watch | Unwatch | Watches | GiveUp | Retry


# ---------------------------------------------------------------- daemon -> client


class Accepted(Message, frozen=True):
    """The daemon serves the job.

    ``state``: "queued" or "running" for a new job or a repeated submit, "deduplicated" if the submit joined an existing
    job, "published" once the artifact is in the store.
    """

    id: str
    key: str
    state: Literal["queued", "running", "deduplicated", "published"]
    position: int = 0  # number of jobs ahead in the queue


class Busy(Message, frozen=True):
    """The queue, or this uid's share of the queue, is full. Submit again after ``retry_after_s`` seconds."""

    id: str
    key: str
    retry_after_s: float


class Rejected(Message, frozen=True):
    """The request cannot be served. The form of this message is frozen for all protocol versions.

    Codes of an immediate reply: "protocol-version", "bad-message", "too-large", "not-permitted", "no-such-device",
    "key-quarantined", "worker-cannot-start", "stopping". Codes that end an accepted job: "compile-failed",
    "device-lost", "gpu-unavailable", "kernel-ahead", "made-up-device", "store-unwritable", "store-unreadable",
    "store-untrusted", "too-many-variants", "key-quarantined", "worker-cannot-start", "job-cancelled", "stopping".
    docs/reference/reasons.md explains these codes.
    """

    code: str
    message: str
    action: str = ""
    id: str = ""
    key: str = ""


class WorkerStatus(msgspec.Struct, frozen=True):
    pid: int
    device: str
    python: str
    torch: str
    state: Literal["starting", "idle", "busy", "stopping"]
    rss_bytes: int
    jobs_done: int
    uid: int = 0
    job: str = ""  # key of the running job
    job_s: float = 0.0  # for how many seconds the job has run


class WatchedGraph(msgspec.Struct, frozen=True):
    """A graph that a watch captured. ``state``: "reused" (the store had its artifact), "compiling", "ready", "failed",
    "bypassed".
    """

    name: str
    key: str
    state: str
    reason: str = ""


class WatchStatus(msgspec.Struct, frozen=True):
    """One watch. Field names are public: `precompiled watch --json`. Points in time are in seconds since the epoch.

    ``state``: "waiting" (for the edits to end), "capturing", "compiling", "ready", or "failed". If a capture failed,
    ``error`` says why, and the artifacts of earlier captures stay.
    """

    id: str
    name: str
    kind: str
    directory: str
    state: str
    error: str = ""
    note: str = ""  # a remark on a successful capture
    edited: str = ""  # the file of the last edit
    edited_at: float = 0.0
    captured: int = 0
    reused: int = 0
    compiling: int = 0
    ready: int = 0
    failed: int = 0
    bypassed: int = 0
    graphs: list[WatchedGraph] = []
    files: int = 0  # number of files that the watch depends on
    captures: int = 0  # number of captures since the daemon started
    capture_s: float = 0.0  # duration of the last capture
    ready_s: float = 0.0  # time from the last save until the watch was ready
    fake: bool = False  # whether the capture used fake tensors, which need no memory
    packages: int = 0  # how many functions have packages from the last successful capture


class StatusReply(Message, frozen=True):
    """The daemon's state. Field names are public: `precompiled status --json`."""

    running: bool
    pid: int
    version: str
    socket: str
    cache_dir: str
    uptime_s: float
    queue_depth: int
    workers: list[WorkerStatus]
    rss_bytes: int = 0
    degraded: list[str] = []  # each sentence says what does not work and what to do
    watches: list[WatchStatus] = []
    settings: dict[str, str] = {}  # the daemon's own settings, as values of flags


class StatsReply(Message, frozen=True):
    """Counts for one uid, which survive a restart. Field names are public: `precompiled cache stats --json`."""

    hits: int = 0
    misses: int = 0
    submitted: int = 0
    deduplicated: int = 0
    compiled: int = 0
    failed: int = 0
    swapped: int = 0
    fallbacks: dict[str, int] = {}
    bypassed: dict[str, int] = {}
    compile_s: float = 0.0
    saved_s: float = 0.0
    retried: int = 0
    rejected: dict[str, int] = {}
    untraced: int = 0
    traced: int = 0
    not_kept: dict[str, int] = {}
    from_base: dict[str, int] = {}
    not_served: dict[str, int] = {}


class Stopping(Message, frozen=True):
    """Reply to Stop."""

    pid: int


class Changed(Message, frozen=True):
    """The keys whose job was cancelled (reply to GiveUp) or whose quarantine ended (reply to Retry)."""

    keys: list[str]


class Watching(Message, frozen=True):
    """The watches that are registered now (reply to Watch) or were removed (reply to Unwatch)."""

    ids: list[str]


class WatchesReply(Message, frozen=True):
    """The watches of the requesting user."""

    watches: list[WatchStatus]
    degraded: list[str] = []


DaemonMessage = Accepted | Busy | Rejected | StatusReply | StatsReply | Stopping | Watching | WatchesReply | Changed


# ---------------------------------------------------------------- daemon -> worker


class Offer(msgspec.Struct, frozen=True):
    """Fields that only a courier's job has."""

    interpreter: Interpreter  # a worker of the farm must match it
    time_limit_s: float  # limit for the compile


class Job(Message, frozen=True):
    """Compile ``graph`` and publish its artifact under ``key`` in ``store``. A courier offers the graph to the farm
    instead.
    """

    id: str
    key: str
    store: str
    device: str
    graph: bytes
    compile_threads: int
    failure_ttl_s: float
    name: str = ""
    attempt: int = 1
    # The worker, not the daemon, evicts artifacts: under a system daemon, only the worker may access the user's store.
    cache_max_bytes: int = 20 << 30
    cache_max_inodes: int = 200_000
    base: list[str] = []  # as in Submit
    queued_s: float = 0.0  # seconds since the first submit
    may_park: bool = False  # whether the daemon accepts the outcome "parked"
    may_overlap: bool = False  # whether the daemon accepts Lowered
    offer: Offer | None = None  # only for a courier
    tune: bool = False  # as in Submit


class Exit(Message, frozen=True):
    """Finish and exit. If the daemon closes the socket instead, the worker exits at once."""


PoolMessage = Job | Exit


# ---------------------------------------------------------------- worker -> daemon


class Ready(Message, frozen=True):
    """Torch is imported and warmed up; the worker accepts jobs."""

    pid: int
    python: str
    torch: str
    version: str  # version of precompiled in the worker's interpreter
    protocol: int = PROTOCOL


class Lowered(Message, frozen=True):
    """Only C++ compilers still run for a job. The daemon may send the next job."""

    id: str
    key: str


class Finished(Message, frozen=True):
    """The outcome of a job. Two jobs of a worker may end in any order.

    - "failed": the worker has published a failure record, unless the store or the GPU caused the failure
    - "parked": another host or the farm compiles the key; offer the job again after ``again_s`` seconds
    - "kept": the farm refuses the courier's job; no courier may offer the job for ``again_s`` seconds
    """

    id: str
    key: str
    outcome: Literal["published", "exists", "failed", "parked", "kept"]
    compile_s: float
    reason: str = ""  # stable code, for "failed"
    message: str = ""  # a sentence, for "failed"
    artifact_bytes: int = 0
    again_s: float = 0.0


WorkerMessage = Ready | Lowered | Finished


# ---------------------------------------------------------------- daemon <-> watcher, framed as with a worker


class Ask(Message, frozen=True):
    """A request to the watcher. The Answer to it has the same ``number``."""

    number: int
    request: Watch | Unwatch


class JobEnded(Message, frozen=True):
    """A job has ended.

    ``ids``: the ids of the Submit messages that the job served. ``state``: "published", "failed", "quarantined" or
    "dropped".
    """

    ids: list[str]
    state: str
    why: str = ""


ToWatcher = Ask | JobEnded | Exit


class Answer(Message, frozen=True):
    number: int
    reply: Watching | Rejected


class Cancel(Message, frozen=True):
    """The watches no longer need these Submit messages. The daemon cancels a job if no other Submit message requested
    it.
    """

    ids: list[str]


class Watched(Message, frozen=True):
    """The state of all watches. The watcher sends it after every change."""

    watches: list[WatchStatus]
    degraded: list[str] = []


FromWatcher = Answer | Cancel | Watched

_encoder = msgspec.msgpack.Encoder()
_sorting_encoder = msgspec.msgpack.Encoder(order="deterministic")
# Decoders are created at import, because msgspec completes a type's fields step by step at their first use. After a
# fork between these steps, the child's fields would be incomplete, and its first message would end in a segmentation
# fault. No fork happens during the import (core/forking.py).
_decoders: dict[object, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (ClientMessage, DaemonMessage, PoolMessage, WorkerMessage, ToWatcher, FromWatcher)
}
_M = TypeVar("_M")


def add_kinds(*kinds: object) -> None:
    """Let ``decode`` accept unions of messages that another module defines.

    That module calls this function when it is imported.
    """
    _decoders.update({kind: msgspec.msgpack.Decoder(kind) for kind in kinds})


def encode(message: Message) -> bytes:
    """The msgpack bytes of a message. Raises MemoryError."""
    return bytes(_encode(message, 0))


def _encode(message: Message, offset: int) -> bytearray:
    """The msgpack bytes of a message after ``offset`` zero bytes."""
    data = bytearray(offset)
    # If memory is exhausted, encode_into raises MemoryError, but Encoder.encode of msgspec 0.22 crashes.
    _encoder.encode_into(message, data, offset)
    return data


def decode(data: bytes | bytearray, kind: type[_M] | object, limit: int = MAX_MESSAGE_BYTES) -> _M:
    """Decode ``data`` as one of ``kind``, a union of this module or of ``add_kinds``. Raises only WireError."""
    if len(data) > limit:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {limit}", code="too-large")
    try:
        return _decoders[kind].decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"not a message of protocol {PROTOCOL}: {error}") from error
    except MemoryError as error:
        raise WireError(f"there is no memory to decode a message of {len(data)} bytes") from error


def interpreter_bytes(interpreter: Interpreter) -> bytes:
    """Encode an interpreter. Equal interpreters have equal bytes, whatever the order of their dicts."""
    return _sorting_encoder.encode(interpreter)


def frame(message: Message) -> bytearray:
    """Encode one message with its length, for a worker's or watcher's stream. Raises MemoryError."""
    data = _encode(message, LENGTH_BYTES)
    data[:LENGTH_BYTES] = (len(data) - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big")
    return data
