"""Every message of the protocol, in one file.

Client and daemon (ZeroMQ DEALER to ROUTER over ``ipc://``), each way, two or three frames::

    PREAMBLE    b"precompiled/<protocol version>"   never changes its form: a skewed peer can always read it
    message     msgpack map with a "type"           one of ClientMessage or DaemonMessage below
    blob        opaque bytes                        only after Submit: the encoded graph, never decoded by the daemon

Daemon and worker (a Unix stream socket inherited by the worker), each way: a 4-byte big-endian length, then a
msgpack map with a "type", one of PoolMessage or WorkerMessage below.

A peer with another protocol version is answered with ``Rejected(code="protocol-version")``, whose form is frozen.
Sizes are capped before anything is allocated: ``MAX_MESSAGE_BYTES`` for messages, the daemon's ``max_graph_bytes``
for blobs (ZMQ_MAXMSGSIZE is unlimited by default).
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from precompiled.errors import WireError
from precompiled.version import VERSION

PROTOCOL = 1
PREAMBLE = b"precompiled/%d" % PROTOCOL
MAX_MESSAGE_BYTES = 1 << 20
DEFAULT_MAX_GRAPH_BYTES = 256 << 20
LENGTH_BYTES = 4


class _Message(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, forbid_unknown_fields=False):
    """Base of all messages: unknown fields are ignored, so that a minor version may add some."""


class Environment(msgspec.Struct, frozen=True):
    """The interpreter a worker must run in: what tells two environments of one user apart."""

    executable: str  # sys.executable of the client
    prefix: str  # sys.prefix of the client (its virtual environment)
    python: str  # "3.11.7"
    torch: str  # torch.__version__, with its build's local part
    triton: str  # triton.__version__, or "" without triton
    variables: dict[str, str]  # the environment variables that a compile depends on, and no others
    # Of precompiled in that interpreter: a worker that was started before an upgrade in place is another environment.
    precompiled: str = VERSION
    # What a worker imports for custom ops: module -> digest of its sources. One that has imported others is not reused.
    modules: dict[str, str] = {}


# ---------------------------------------------------------------- client -> daemon


class Submit(_Message, frozen=True):
    """Compile this graph unless it is compiled, queued or running; the blob frame carries the graph."""

    id: str  # one id from the client to the artifact, shown by status and the logs
    key: str
    store: str  # absolute path of the client's store; a worker of the client's uid publishes there
    environment: Environment
    device: str  # "cpu", or "cuda:<GPU UUID>"
    name: str = ""  # what people call the graph, e.g. "GPT2Model.forward [0/0]"
    waiting: bool = False  # a client blocks on it: goes before background jobs
    deadline_s: float = 0.0  # seconds from now after which nobody wants it any more; 0: none


class Tally(_Message, frozen=True):
    """What a client counted since its last Tally (hits happen without the daemon). Best effort, no reply."""

    pid: int
    hits: int = 0
    misses: int = 0
    swapped: int = 0
    saved_s: float = 0.0  # compile seconds that hits and swaps spared this client
    fallbacks: dict[str, int] = {}
    bypassed: dict[str, int] = {}


class Status(_Message, frozen=True):
    """Ask for StatusReply."""


class Stats(_Message, frozen=True):
    """Ask for StatsReply."""


class Stop(_Message, frozen=True):
    """Finish nothing more, stop the workers, exit. Only the daemon's own uid and root may ask."""


ClientMessage = Submit | Tally | Status | Stats | Stop


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
    "worker-cannot-start", "stopping". Later, as the end of an accepted job: "compile-failed", "expired",
    "key-quarantined", "worker-cannot-start", "stopping". What each means: docs/protocol.md.
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


class Stopping(_Message, frozen=True):
    """Reply to Stop."""

    pid: int


DaemonMessage = Accepted | Busy | Rejected | StatusReply | StatsReply | Stopping


# ---------------------------------------------------------------- daemon -> worker


class Job(_Message, frozen=True):
    """Compile ``graph``, publish it under ``key`` in ``store``."""

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
    """The job's outcome. "failed" has been published too, as a failure record, unless the store itself failed."""

    id: str
    key: str
    outcome: Literal["published", "exists", "failed"]
    compile_s: float
    reason: str = ""  # stable code, for "failed"
    message: str = ""  # a sentence, for "failed"
    artifact_bytes: int = 0


WorkerMessage = Ready | Finished

_encoder = msgspec.msgpack.Encoder()
_sorting_encoder = msgspec.msgpack.Encoder(order="deterministic")
_M = TypeVar("_M")


def encode(message: _Message) -> bytes:
    """The msgpack bytes of a message."""
    return _encoder.encode(message)


def decode(data: bytes, kind: type[_M] | object, limit: int = MAX_MESSAGE_BYTES) -> _M:
    """Decode ``data`` as one of the union ``kind``; raises WireError, and nothing else, for anything it is not."""
    if len(data) > limit:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {limit}", code="too-large")
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"not a message of protocol {PROTOCOL}: {error}") from error


def identity(environment: Environment) -> bytes:
    """Equal for equal environments, whatever the order of their dicts."""
    return _sorting_encoder.encode(environment)


def frame(message: _Message) -> bytes:
    """One length-prefixed message of the daemon-worker stream."""
    data = _encoder.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data
