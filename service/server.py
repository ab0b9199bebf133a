"""The ROUTER socket: requests of peers, the peers' uids, and the answers. The only file of the daemon that uses zmq.

Bad input of a peer ends in a typed ``Rejected``, and raises nothing in the daemon's loop. A frame over the size limit
 makes libzmq close that connection, before anything is allocated; clients check the size themselves.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import select
import stat
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zmq

from precompiled import wire
from precompiled.core import paths
from precompiled.core.config import MAX_BASES
from precompiled.core.errors import DaemonError, WireError

log = logging.getLogger("precompiled.server")

FRAMES = 3  # at most, after the routing id
BACKLOG = 1024
RECEIVE_HWM = 8  # messages per peer waiting in libzmq: graphs are large
SEND_HWM = 2000  # replies per peer; a peer that does not read loses further ones, and blocks nobody
MESSAGES_PER_ROUND = 64  # before workers and timers get their turn
MAX_TEXT = 256  # characters of an id or a name
LOG_EVERY_S = 10.0  # at most one line per kind of bad input in this time
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True)
class Peer:
    """The process that sent a message, as the kernel names it."""

    routing_id: bytes  # the ROUTER's name for the connection: where replies go
    uid: int
    gid: int
    pid: int


@dataclass(frozen=True)
class Request:
    peer: Peer
    message: wire.ClientMessage
    blob: bytes


class Lock:
    """The lock of a runtime directory, which its one daemon holds until it exits.

    libzmq unlinks a socket's path before it binds it, so a second daemon would steal the endpoint silently. The file
    is never removed: a lock on a file that somebody unlinked would exclude nobody.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self) -> bool:
        """Take the lock; false when another daemon holds it. Raises OSError when the file cannot be opened."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        if not self.is_ours():  # replaced between the open and the lock
            self.release()
            return False
        os.ftruncate(fd, 0)
        os.write(fd, b"%d\n" % os.getpid())
        return True

    def is_ours(self) -> bool:
        """Whether the path still names the file that we hold. Raises OSError where the file system cannot tell."""
        if self._fd < 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def prepare_runtime_dir(path: Path, *, system: bool) -> None:
    """Make the directory, or check that only we can write to it; raises DaemonError that names what is wrong."""
    wanted = 0o755 if system else 0o700
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mkdir(path, wanted)
        except FileExistsError:
            pass
        found = os.stat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise DaemonError(
                f"{path} is not a directory of uid {os.geteuid()}",
                "Remove it, or set PRECOMPILED_RUNTIME_DIR to another directory", code="runtime-dir-untrusted",
            )  # fmt: skip
        if stat.S_IMODE(found.st_mode) != wanted:
            if stat.S_IMODE(found.st_mode) & 0o022 and os.listdir(path):
                # Another user may have put a lock that he holds there, or a link.
                raise DaemonError(
                    f"others may write to {path}", f"chmod {wanted:o} {path}, after a look at what lies there",
                    code="runtime-dir-untrusted",
                )  # fmt: skip
            os.chmod(path, wanted)
    except OSError as error:
        raise DaemonError(
            f"the runtime directory {path} cannot be used: {error}",
            "Set PRECOMPILED_RUNTIME_DIR to a directory that you can write to", code="runtime-dir",
        ) from error  # fmt: skip


class Server:
    """``open`` binds it; then ``poll``, ``requests`` and ``send``, from one thread."""

    def __init__(self, runtime_dir: Path, *, system: bool, max_graph_bytes: int) -> None:
        self.path = paths.socket_path(runtime_dir)
        self._endpoint = paths.endpoint(runtime_dir)
        self._system = system
        self._max_graph_bytes = max_graph_bytes
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._inode: tuple[int, int] | None = None
        self._logged: dict[str, float] = {}
        self.refused: Counter[str] = Counter()  # bad input by code

    def open(self) -> None:
        """Bind; the caller holds the lock. Raises DaemonError when that is not possible."""
        if self._system and tuple(map(int, zmq.zmq_version().split(".")[:3])) < (4, 3, 0):
            raise DaemonError("this libzmq does not tell who a peer is", "Install pyzmq 26 or later", code="libzmq")
        self._context = zmq.Context(io_threads=1)
        self._socket = router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 500)
        router.setsockopt(zmq.MAXMSGSIZE, self._max_graph_bytes + wire.MAX_MESSAGE_BYTES)
        router.setsockopt(zmq.RCVHWM, RECEIVE_HWM)
        router.setsockopt(zmq.SNDHWM, SEND_HWM)
        router.setsockopt(zmq.BACKLOG, BACKLOG)
        # The default: a reply to a peer that has left, or that does not read, is dropped and never blocks.
        router.setsockopt(zmq.ROUTER_MANDATORY, 0)
        old = os.umask(0o177)  # so that others cannot write to the socket before its chmod
        try:
            router.bind(self._endpoint)
        except zmq.ZMQError as error:
            raise DaemonError(f"the socket {self.path} cannot be bound: {error}", "See `precompiled doctor`",
                              code="bind") from error  # fmt: skip
        finally:
            os.umask(old)
        os.chmod(self.path, 0o666 if self._system else 0o600)
        found = os.lstat(self.path)
        self._inode = (found.st_dev, found.st_ino)

    def is_ours(self) -> bool:
        """Whether the path still names our socket: if not, clients cannot reach us.

        Raises OSError where the file system cannot tell.
        """
        try:
            found = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_dev, found.st_ino) == self._inode

    def poll(self, fds: dict[int, int], timeout_s: float) -> list[tuple[int, int]]:
        """Wait for a message or for one of ``fds`` (descriptor -> select events); the descriptors that are ready."""
        assert self._socket is not None
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        for fd, events in fds.items():
            # zmq has its own numbers for the same events (its POLLOUT is select's POLLPRI).
            wanted = (zmq.POLLIN if events & select.POLLIN else 0) | (zmq.POLLOUT if events & select.POLLOUT else 0)
            poller.register(fd, wanted)
        ready = poller.poll(max(0, int(timeout_s * 1000) + 1))
        found = []
        for fd, events in ready:
            if isinstance(fd, int):
                # zmq reports a closed end as an error; the next read of it tells.
                readable = select.POLLIN if events & (zmq.POLLIN | zmq.POLLERR) else 0
                found.append((fd, readable | (select.POLLOUT if events & zmq.POLLOUT else 0)))
        return found

    def requests(self) -> Iterator[Request]:
        """Requests of peers, so many as belong to one round; bad input is answered here."""
        for _ in range(MESSAGES_PER_ROUND):
            received = self._receive()
            if received is None:
                return
            routing_id, frames = received
            request = self._understand(routing_id, frames)
            if request is not None:
                yield request

    def send(self, routing_id: bytes, message: wire.DaemonMessage) -> None:
        """Reply, or drop the reply when the peer is gone or does not read."""
        assert self._socket is not None
        try:
            self._socket.send_multipart([routing_id, wire.PREAMBLE, wire.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            self._note("unsent-reply", f"a reply was not sent: {error}")

    def close(self) -> None:
        """Close and remove the socket, if it is still ours."""
        ours = False
        with suppress(OSError):
            ours = self.is_ours()
        if self._socket is not None:
            self._socket.close()
        if self._context is not None:
            self._context.term()  # bounded by LINGER
        if ours:
            self.path.unlink(missing_ok=True)

    def _receive(self) -> tuple[bytes, list[zmq.Frame]] | None:
        """One multipart message, its routing id first; frames beyond the third are read and dropped."""
        assert self._socket is not None
        frames: list[zmq.Frame] = []
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            except zmq.ZMQError as error:
                self._note("receive", f"nothing can be received: {error}")
                return None
            if len(frames) <= FRAMES + 1:
                frames.append(frame)
            if not frame.more:
                return frames[0].bytes, frames[1:]

    def _peer(self, routing_id: bytes, frame: zmq.Frame) -> Peer:
        try:
            address = frame.get("Peer-Address")
            _, uid, gid, pid = str(address).rsplit(":", 3)
            return Peer(routing_id, int(uid), int(gid), int(pid))
        except (zmq.ZMQError, AttributeError, ValueError, TypeError) as error:
            raise WireError(f"the kernel did not say who this is ({error})", code="not-permitted") from error

    def _understand(self, routing_id: bytes, frames: list[zmq.Frame]) -> Request | None:
        message: wire.ClientMessage | None = None
        try:
            if not frames:
                raise WireError("a message without frames")
            peer = self._peer(routing_id, frames[0])
            if not self._system and peer.uid not in (os.geteuid(), 0):
                raise WireError(f"this daemon serves uid {os.geteuid()} alone", code="not-permitted")
            preamble = frames[0].bytes[:64]
            if preamble != wire.PREAMBLE:
                if preamble.startswith(b"precompiled/"):
                    raise WireError(f"the daemon speaks protocol {wire.PROTOCOL}, the client said {preamble!r}",
                                    code="protocol-version")  # fmt: skip
                raise WireError(f"expected the preamble {wire.PREAMBLE!r}")
            if len(frames) not in (2, 3):
                raise WireError(f"expected 2 or 3 frames, got {len(frames)}")
            message = wire.decode(frames[1].bytes, wire.ClientMessage)
            has_blob = len(frames) == 3
            if has_blob != isinstance(message, wire.Submit):
                raise WireError("a blob frame belongs to Submit, and to nothing else")
            blob = frames[2].bytes if has_blob else b""
            if isinstance(message, wire.Submit):
                check_submit(message, blob, self._max_graph_bytes)
            if isinstance(message, (wire.Submit, wire.Expect)) and not self._system and peer.uid != os.geteuid():
                # root's graphs would be compiled as another user: root must ask a daemon of its own
                raise WireError(f"this daemon compiles for uid {os.geteuid()} alone", code="not-permitted")
            if isinstance(message, wire.Stop) and peer.uid not in (os.geteuid(), 0):
                raise WireError("only root and the daemon's own user may stop it", code="not-permitted")
        except WireError as error:
            self._note(error.code, f"refused: {error.message}")
            action = {
                "protocol-version": "Restart whichever is older: `precompiled restart`, or this process",
                "too-large": "Raise max_graph_bytes, or leave this graph eager",
            }.get(error.code, "")
            known = message if isinstance(message, wire.Submit) else None
            self.send(routing_id, wire.Rejected(
                error.code, error.message[:1000], action,
                id=known.id[:MAX_TEXT] if known else "", key=known.key[:MAX_TEXT] if known else "",
            ))  # fmt: skip
            return None
        return Request(peer, message, blob)

    def _note(self, code: str, text: str) -> None:
        """Count bad input, and log one line per code and LOG_EVERY_S: a peer must not be able to fill the disk."""
        self.refused[code] += 1
        now = time.monotonic()
        if now - self._logged.get(code, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged[code] = now
            log.warning("%s (%d of these so far)", text, self.refused[code])


def check_submit(message: wire.Submit, blob: bytes, max_graph_bytes: int) -> None:
    """Check what the types do not; raises WireError. No file is looked at: the worker does that, as its user."""
    if len(blob) > max_graph_bytes:
        raise WireError(f"a graph of {len(blob)} bytes is over the limit of {max_graph_bytes}", code="too-large")
    if not blob:
        raise WireError("the graph is empty")
    if not _KEY.fullmatch(message.key):
        raise WireError("the key is no plain name")
    if not message.id or len(message.id) > MAX_TEXT or len(message.name) > 4 * MAX_TEXT:
        raise WireError("the id is missing, or the id or the name is too long")
    if len(message.base) > MAX_BASES:
        raise WireError(f"{len(message.base)} base stores are more than {MAX_BASES}")
    places = [("store", message.store), ("interpreter", message.environment.executable)]
    for what, path in places + [("base store", base) for base in message.base]:
        if not os.path.isabs(path) or "\0" in path or len(path) > 4096:
            raise WireError(f"the {what} {path[:MAX_TEXT]!r} is not an absolute path")
