"""Every message of the protocol, in one file.

Client and daemon (ZeroMQ DEALER to ROUTER over ``ipc://``), each way, two or three frames::

    PREAMBLE    b"precompiled/<protocol version>"   never changes its form: a skewed peer can always read it
    message     msgpack map with a "type"           one of ClientMessage or DaemonMessage below
    blob        opaque bytes                        only after Submit: the encoded graph, never decoded by the daemon

Daemon and worker (a Unix stream socket inherited by the worker), each way: a 4-byte big-endian length, then a
msgpack map with a "type", one of PoolMessage or WorkerMessage below. Daemon and watcher do the same, with ToWatcher
and FromWatcher.

A peer with another protocol version is answered with ``Rejected(code="protocol-version")``, whose form is frozen.
Sizes are capped before anything is allocated: ``MAX_MESSAGE_BYTES`` for messages, the daemon's ``max_graph_bytes``
for blobs.
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


class _Message(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, forbid_unknown_fields=False):
    """Base of all messages: unknown fields are ignored, so that a minor version may add some."""


class Interpreter(msgspec.Struct, frozen=True):
    """The interpreter that a worker must run in. A worker serves jobs of one interpreter alone."""

    executable: str  # sys.executable of the client
    prefix: str  # sys.prefix of the client (its virtual environment)
    python: str  # "3.11.7"
    torch: str  # torch.__version__, with its build's local part
    triton: str  # triton.__version__, or "" without triton
    variables: dict[str, str]  # the environment variables that a compile depends on, and no others
    # The version in that interpreter: after an upgrade in place, workers from before it serve no further jobs.
    precompiled: str = VERSION
    # Modules of custom ops that a worker imports, with digests of their sources, and ops that it defines as the program
    # does (lib::name). A worker with others is not reused.
    modules: dict[str, str] = {}


# ---------------------------------------------------------------- client -> daemon


class Submit(_Message, frozen=True):
    """Compile this graph unless it is compiled, queued or running; the blob frame carries the graph."""

    id: str  # one id from the client to the artifact, status and the logs show it
    key: str
    store: str  # absolute path of the client's store; a worker of the client's uid publishes there
    environment: Interpreter
    device: str  # "cpu", or "cuda:<GPU UUID>"
    name: str = ""  # what people call the graph, e.g. "GPT2Model.forward [0/0]"
    waiting: bool = False  # a client waits for it: it goes before background jobs
    base: list[str] = []  # absolute paths of the client's base stores: what one of them has is not compiled
    farm: bool = False  # while no worker has room for it, it may be offered to the client's farm (docs/guides/farm.md)
    tune: bool = False  # an artifact that was made without measuring (docs/guides/targets.md) does not count as one


class Tally(_Message, frozen=True):
    """What a client counted since its last Tally (hits happen without the daemon). Best effort, no reply."""

    pid: int
    hits: int = 0
    misses: int = 0
    swapped: int = 0
    saved_s: float = 0.0  # compile seconds of hits and swaps in which this client did not wait for them
    untraced: int = 0  # frames that a package spared Dynamo's trace
    traced: int = 0  # frames that Dynamo traced while packages were on
    not_kept: dict[str, int] = {}  # frames that no package can hold
    from_base: dict[str, int] = {}  # graphs whose artifact was loaded from a base store, by its path
    fallbacks: dict[str, int] = {}
    bypassed: dict[str, int] = {}
    not_served: dict[str, int] = {}  # graphs that ``require`` let raise


class Expect(_Message, frozen=True):
    """A graph is being traced, and the store has nothing: a worker may start meanwhile. Best effort, no reply."""

    environment: Interpreter
    device: str  # as in Submit; a guess of the client


class Status(_Message, frozen=True):
    """Ask for StatusReply."""


class Stats(_Message, frozen=True):
    """Ask for StatsReply."""


class Stop(_Message, frozen=True):
    """Finish nothing more, stop the workers, exit. Only the daemon's own uid and root may ask."""


class Registration(msgspec.Struct, frozen=True):
    """What a watch captures again after an edit (docs/guides/watch.md). Its code runs as the user who registers it."""

    kind: Literal["entry", "run"]
    command: list[str]  # ["pkg.module:factory"] or ["pkg.module"]; of a run: its argv
    executable: str  # the interpreter that entry points are called in
    directory: str  # working directory
    store: str  # where the runs of this user look their artifacts up
    variables: dict[str, str]  # all environment variables: the command is the user's own
    files: list[str] = []  # absolute paths of further files that it depends on: configuration
    time_limit_s: float = 600.0  # of one capture
    memory_limit_bytes: int = 0  # resident, of a capture's process tree; 0: half of the memory
    steps: int = 3  # a run is ended after so many optimizer steps without a new graph


class Watch(_Message, frozen=True):
    """Register a watch, or replace the one with the same id; answered with Watching, or Rejected."""

    registration: Registration


class Unwatch(_Message, frozen=True):
    """Remove these watches; answered with Watching, which has those that were known."""

    ids: list[str]


class Watches(_Message, frozen=True):
    """Ask for WatchesReply."""


# Beginnings of keys: each is compared with each job. Checked before the list is decoded, which takes a peer's share of
# the daemon's time.
_Beginnings = Annotated[list[Annotated[str, msgspec.Meta(max_length=256)]], msgspec.Meta(max_length=256)]


class GiveUp(_Message, frozen=True):
    """Give up the asking user's jobs of the keys that begin so, whoever asked for them; answered with Changed."""

    keys: _Beginnings


class Retry(_Message, frozen=True):
    """Take what begins so out of quarantine: the next submit is compiled again; answered with Changed."""

    keys: _Beginnings


ClientMessage = Submit | Tally | Expect | Status | Stats | Stop | Watch | Unwatch | Watches | GiveUp | Retry


# ---------------------------------------------------------------- daemon -> client


class Accepted(_Message, frozen=True):
    """The job exists. ``state``: "queued" or "running" (new), "deduplicated" (another client's), "published"."""

    id: str
    key: str
    state: Literal["queued", "running", "deduplicated", "published"]
    position: int = 0  # jobs before it in the queue


class Busy(_Message, frozen=True):
    """The queue (or this uid's part of it) is full: submit again after ``retry_after_s`` seconds."""

    id: str
    key: str
    retry_after_s: float


class Rejected(_Message, frozen=True):
    """The request cannot be served; the form of this message is frozen for all protocol versions.

    At once: "protocol-version", "bad-message", "too-large", "not-permitted", "no-such-device", "key-quarantined",
    "worker-cannot-start", "stopping". Later, as the end of an accepted job: "compile-failed", "device-lost",
    "gpu-unavailable", "made-up-device", "store-unwritable", "store-unreadable", "store-untrusted", "too-many-variants",
    "key-quarantined", "worker-cannot-start", "job-cancelled", "stopping". What each means: docs/reference/protocol.md.
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
    job_s: float = 0.0  # seconds it has been running


class WatchedGraph(msgspec.Struct, frozen=True):
    """``state``: "reused" (the artifact was there), "compiling", "ready", "failed", "bypassed"."""

    name: str
    key: str
    state: str
    reason: str = ""


class WatchStatus(msgspec.Struct, frozen=True):
    """Field names are public: `precompiled watch --json`. Times of day in seconds since the epoch.

    ``state``: "waiting" (for the edits to end), "capturing", "compiling", "ready", or "failed" (``error`` says why;
    what was compiled before stays).
    """

    id: str
    name: str
    kind: str
    directory: str
    state: str
    error: str = ""
    note: str = ""  # what is worth knowing of a capture that went well
    edited: str = ""  # the file of the last edit
    edited_at: float = 0.0
    captured: int = 0
    reused: int = 0
    compiling: int = 0
    ready: int = 0
    failed: int = 0
    bypassed: int = 0
    graphs: list[WatchedGraph] = []
    files: int = 0  # how many it depends on
    captures: int = 0  # since the daemon started
    capture_s: float = 0.0  # of the last one
    ready_s: float = 0.0  # from the last save to ready
    fake: bool = False  # captured without the memory of its tensors
    packages: int = 0  # functions whose packages the last good capture has written: their next call is not traced


class StatusReply(_Message, frozen=True):
    """Field names are public: `precompiled status --json`."""

    running: bool
    pid: int
    version: str
    socket: str
    cache_dir: str
    uptime_s: float
    queue_depth: int
    workers: list[WorkerStatus]
    rss_bytes: int = 0
    degraded: list[str] = []  # sentences: what does not work as it should, and what to do
    watches: list[WatchStatus] = []


class StatsReply(_Message, frozen=True):
    """Field names are public: `precompiled stats --json`. Counted since the daemon started, for the asking uid."""

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


class Stopping(_Message, frozen=True):
    """Reply to Stop."""

    pid: int


class Changed(_Message, frozen=True):
    """The keys of which a job was given up (answer to GiveUp), or a quarantine ended (to Retry)."""

    keys: list[str]


class Watching(_Message, frozen=True):
    """The watches that are registered now (answer to Watch), or were (to Unwatch)."""

    ids: list[str]


class WatchesReply(_Message, frozen=True):
    """The asking user's watches."""

    watches: list[WatchStatus]
    degraded: list[str] = []


DaemonMessage = Accepted | Busy | Rejected | StatusReply | StatsReply | Stopping | Watching | WatchesReply | Changed


# ---------------------------------------------------------------- daemon -> worker


class Offer(msgspec.Struct, frozen=True):
    """What a courier's job has more than a worker's."""

    interpreter: Interpreter  # that a worker of the farm must be like
    time_limit_s: float  # of the compile


class Job(_Message, frozen=True):
    """Compile ``graph``, publish it under ``key`` in ``store``; to a courier: offer it to the farm."""

    id: str
    key: str
    store: str
    device: str
    graph: bytes
    compile_threads: int
    failure_ttl_s: float
    name: str = ""
    attempt: int = 1
    cache_max_bytes: int = 20 << 30  # the worker evicts: in a system daemon it alone may touch the user's store
    cache_max_inodes: int = 200_000
    base: list[str] = []  # as in Submit
    queued_s: float = 0.0  # since its first submit
    may_park: bool = False  # the daemon knows the outcome "parked"
    offer: Offer | None = None  # for a courier
    tune: bool = False  # as in Submit


class Exit(_Message, frozen=True):
    """Finish and leave; closing the socket means the same, at once."""


PoolMessage = Job | Exit


# ---------------------------------------------------------------- worker -> daemon


class Ready(_Message, frozen=True):
    """Torch is imported and warm; jobs may come."""

    pid: int
    python: str
    torch: str
    version: str  # of precompiled in the worker's interpreter
    protocol: int = PROTOCOL


class Finished(_Message, frozen=True):
    """The job's outcome. "failed" has been published too, as a failure record, unless the store or the GPU failed.
    "parked": another host compiles it, or the farm does; to be run again after ``again_s`` seconds. "kept": a courier's
    word that the farm does not take it; no courier is to offer it before ``again_s`` seconds have passed.
    """

    id: str
    key: str
    outcome: Literal["published", "exists", "failed", "parked", "kept"]
    compile_s: float
    reason: str = ""  # stable code, for "failed"
    message: str = ""  # a sentence, for "failed"
    artifact_bytes: int = 0
    again_s: float = 0.0


WorkerMessage = Ready | Finished


# ---------------------------------------------------------------- daemon <-> watcher, framed as with a worker


class Ask(_Message, frozen=True):
    """A peer's request; the answer carries its number."""

    number: int
    request: Watch | Unwatch


class JobEnded(_Message, frozen=True):
    """A job that these submits asked for has ended: "published", "failed", "quarantined" or "dropped"."""

    ids: list[str]
    state: str
    why: str = ""


ToWatcher = Ask | JobEnded | Exit


class Answer(_Message, frozen=True):
    number: int
    reply: Watching | Rejected


class Cancel(_Message, frozen=True):
    """The watches want these submits no more. A job is given up, queued or running, when all of its submits are."""

    ids: list[str]


class Watched(_Message, frozen=True):
    """How the watches are now; sent after every change."""

    watches: list[WatchStatus]
    degraded: list[str] = []


FromWatcher = Answer | Cancel | Watched

_encoder = msgspec.msgpack.Encoder()
_sorting_encoder = msgspec.msgpack.Encoder(order="deterministic")
# Made here, not by the first message: msgspec fills in a type's fields when it first needs them, step by step, and a
# fork in the midst of that leaves the child with half of them; its first message would be a segmentation fault there.
# An import is whole before the child can use it (core/forking.py).
_decoders: dict[object, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind)
    for kind in (ClientMessage, DaemonMessage, PoolMessage, WorkerMessage, ToWatcher, FromWatcher)
}
_M = TypeVar("_M")


def encode(message: _Message) -> bytes:
    """The msgpack bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes, kind: type[_M] | object, limit: int = MAX_MESSAGE_BYTES) -> _M:
    """Decode ``data`` as one of ``kind``, a union of this module; raises WireError, and nothing else."""
    if len(data) > limit:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {limit}", code="too-large")
    try:
        return _decoders[kind].decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"not a message of protocol {PROTOCOL}: {error}") from error


def interpreter_bytes(interpreter: Interpreter) -> bytes:
    """Equal for equal interpreters, whatever the order of their dicts."""
    return _sorting_encoder.encode(interpreter)


def frame(message: _Message) -> bytes:
    """One length-prefixed message of the daemon-worker stream."""
    data = _encoder.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data
