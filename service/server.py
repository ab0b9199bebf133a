"""The daemon's socket: receives requests and sends replies. The kernel identifies each peer (service/connections.py).

Bad input from a peer is answered with a typed ``Rejected`` and raises nothing in the daemon's loop. A message over the
size limit closes its connection before any of it is buffered; clients check the size before they send.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import select
import shlex
import socket
import stat
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from precompiled.service import access_list
from precompiled.service.connections import Connection, Connections, capacity

from precompiled import wire
from precompiled.core import paths, zmtp
from precompiled.core.errors import DaemonError, WireError
from precompiled.core.setting_values import MAX_BASES

log = logging.getLogger("precompiled.server")

MAX_TEXT = 256  # characters of an id or a name
LOG_EVERY_S = 10.0  # minimum time between two lines about one kind of bad input
_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True)
class Sender:
    """The process that sent a message, as identified by the kernel."""

    routing_id: bytes  # the daemon's name for the connection, which replies are addressed to
    uid: int
    gid: int
    pid: int


@dataclass(frozen=True)
class ClientRequest:
    peer: Sender
    message: wire.ClientMessage
    blob: bytes


class Lock:
    """The lock of a runtime directory. The daemon that serves the directory holds this lock until it exits.

    A daemon unlinks the socket's path before it binds, so without the lock a second daemon would silently take over
    the path. The lock file is never removed: otherwise two daemons could each lock a different file of that name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def acquire(self) -> bool:
        """Take the lock; false if another daemon holds it. Raises OSError if the file cannot be opened."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._fd = fd
        if not self.is_ours():  # the file was replaced between the open and the lock
            self.release()
            return False
        os.ftruncate(fd, 0)
        os.write(fd, b"%d\n" % os.getpid())
        return True

    def is_ours(self) -> bool:
        """Whether the path still names the locked file.

        Raises OSError if the file system reports an error.
        """
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
    """Make the directory, or check that only this user can write to it. Raises DaemonError if the directory is not safe
    to use.
    """
    wanted = 0o755 if system else 0o700

    def refuse(why: str, action: str) -> DaemonError:
        return DaemonError(why, action, code="runtime-dir-untrusted")

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.mkdir(path, wanted)
        except FileExistsError:
            pass
        if os.lstat(path).st_uid not in (os.geteuid(), 0):  # another user's link could lead anywhere
            raise refuse(
                f"{path} is not a directory of uid {os.geteuid()}",
                "Remove it, or set PRECOMPILED_RUNTIME_DIR to another directory",
            )
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid():
                raise refuse(
                    f"{path} is not a directory of uid {os.geteuid()}",
                    "Remove it, or set PRECOMPILED_RUNTIME_DIR to another directory",
                )
            if stat.S_IMODE(found.st_mode) != wanted:
                names = os.listdir(fd)
                if stat.S_IMODE(found.st_mode) & 0o022 and names:
                    # Another user may have put a link there, or a lock file that this user holds.
                    action = f"Check the files in {path}, then run `chmod {wanted:o} {shlex.quote(str(path))}`"
                    raise refuse(f"others may write to {path}", action)
                # a directory for other purposes: others may need to read it
                if names and paths.LOCK_NAME not in names:
                    raise refuse(
                        f"{path} has other files, and the daemon would change its mode to {wanted:o}",
                        "Set PRECOMPILED_RUNTIME_DIR to a different directory",
                    )
                os.fchmod(fd, wanted)
        finally:
            os.close(fd)
    except OSError as error:
        raise DaemonError(
            f"the runtime directory {path} cannot be used: {error}",
            "Set PRECOMPILED_RUNTIME_DIR to a directory that you can write to",
            code="runtime-dir",
        ) from error


class Server:
    """The socket. Call ``open``, then ``poll``, ``requests`` and ``send``, all from one thread."""

    def __init__(
        self, runtime_dir: Path, *, system: bool, max_graph_bytes: int, max_parts_bytes: int | None = None
    ) -> None:
        """``max_parts_bytes``: limit for the incomplete messages of all users; at least one graph is always allowed."""
        self.path = paths.socket_path(runtime_dir)
        self._system = system
        self._max_graph_bytes = max_graph_bytes
        largest = max_graph_bytes + wire.MAX_MESSAGE_BYTES + len(wire.PREAMBLE)
        self._connections = Connections(
            largest, max(largest, max_parts_bytes or 0), self._note, deny=self._deny if system else None
        )
        self._inode: tuple[int, int] | None = None
        self._logged: dict[str, float] = {}
        self.refused: Counter[str] = Counter()  # maps the code of bad input to the number of times that it came

    def open(self) -> None:
        """Bind the socket; the caller holds the lock. Raises DaemonError if the socket cannot be bound."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        old = os.umask(0o177)  # so that other users cannot connect before the chmod
        try:
            self.path.unlink(missing_ok=True)  # left by a killed daemon: this one holds the lock
            listening.bind(str(self.path))
        except OSError as error:
            listening.close()
            raise DaemonError(
                f"the socket {self.path} cannot be bound: {error}", "See `precompiled doctor`", code="bind"
            ) from error
        finally:
            os.umask(old)
        os.chmod(self.path, 0o666 if self._system else 0o600)
        found = os.lstat(self.path)
        self._inode = (found.st_dev, found.st_ino)
        self._connections.open(listening, capacity())

    def _deny(self, uids: Iterable[int]) -> None:
        try:
            access_list.deny(self.path, uids)
        except OSError as error:
            self._note("no-access-list", f"the socket cannot deny a user with too many connections: {error}")

    def is_ours(self) -> bool:
        """Whether the path still names this socket. If not, clients cannot connect.

        Raises OSError if the file system reports an error.
        """
        try:
            found = os.lstat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_dev, found.st_ino) == self._inode

    def poll(self, fds: dict[int, int], timeout_s: float) -> list[tuple[int, int]]:
        """Wait for a message or for one of ``fds``, which maps descriptors to poll events. Returns the ready ones."""
        poller = select.poll()
        mine = self._connections.fileno()
        poller.register(mine, select.POLLIN)
        for fd, events in fds.items():
            poller.register(fd, events)
        wake = self._connections.next_wake(time.monotonic())
        timeout_s = timeout_s if wake is None else min(timeout_s, wake)
        found = []
        for fd, events in poller.poll(max(0, int(timeout_s * 1000) + 1) if timeout_s > 0 else 0):
            if fd != mine:
                # Errors and hang-ups count as readable: the next read reports them.
                readable = select.POLLIN if events & ~select.POLLOUT else 0
                found.append((fd, readable | (events & select.POLLOUT)))
        return found

    def requests(self) -> Iterator[ClientRequest]:
        """The valid requests of one turn. Bad input is answered with ``Rejected``."""
        self._connections.collect()
        for connection, frames in self._connections.messages():
            request = self._understand(connection, frames)
            if request is not None:
                yield request

    def send(self, routing_id: bytes, message: wire.DaemonMessage) -> None:
        """Send a reply, or drop it if the peer has disconnected or does not read."""
        if not self._connections.send(routing_id, zmtp.encode([wire.PREAMBLE, wire.encode(message)])):
            self._note("unsent-reply", "a peer does not read its replies; further replies are dropped")

    def close(self) -> None:
        """Close the socket, and remove it if the path still names it."""
        ours = False
        with suppress(OSError):
            ours = self.is_ours()
        self._connections.close()
        if ours:
            self.path.unlink(missing_ok=True)

    def _understand(self, connection: Connection, frames: list[bytes]) -> ClientRequest | None:
        message: wire.ClientMessage | None = None
        peer = Sender(connection.name, connection.uid, connection.gid, connection.pid)
        try:
            if not self._system and peer.uid not in (os.geteuid(), 0):
                raise WireError(f"this daemon serves only uid {os.geteuid()}", code="not-permitted")
            preamble = frames[0][:64]
            if preamble != wire.PREAMBLE:
                if preamble.startswith(b"precompiled/"):
                    raise WireError(
                        f"the daemon has protocol {wire.PROTOCOL}, the client sent {preamble!r}",
                        code="protocol-version",
                    )
                raise WireError(f"expected the preamble {wire.PREAMBLE!r}")
            if len(frames) not in (2, 3):
                raise WireError(f"expected 2 or 3 frames, got {len(frames)}")
            message = wire.decode(frames[1], wire.ClientMessage)
            has_blob = len(frames) == 3
            if has_blob != isinstance(message, wire.Submit):
                raise WireError("only Submit may have a blob frame")
            blob = frames[2] if has_blob else b""
            if isinstance(message, wire.Submit):
                check_submit(message, blob, self._max_graph_bytes)
            if isinstance(message, wire.Expect) and message.store:
                check_path("store", message.store)
            if isinstance(message, (wire.Submit, wire.Expect)) and not self._system and peer.uid != os.geteuid():
                # the daemon's user must not run root's compiles, so root must use a daemon of its own
                raise WireError(f"this daemon compiles only for uid {os.geteuid()}", code="not-permitted")
            if isinstance(message, wire.Stop) and peer.uid not in (os.geteuid(), 0):
                raise WireError("only root and the daemon's own user may stop it", code="not-permitted")
        except WireError as error:
            self._note(error.code, f"refused: {error.message}")
            action = {
                "protocol-version": "Restart the older one: the daemon (`precompiled daemon restart`) or this process",
                "too-large": "Raise max_graph_bytes",
            }.get(error.code, "")
            known = message if isinstance(message, wire.Submit) else None
            self.send(
                peer.routing_id,
                wire.Rejected(
                    error.code,
                    error.message[:1000],
                    action,
                    id=known.id[:MAX_TEXT] if known else "",
                    key=known.key[:MAX_TEXT] if known else "",
                ),
            )
            return None
        return ClientRequest(peer, message, blob)

    def _note(self, code: str, text: str) -> None:
        """Count bad input, and log at most one line per code in LOG_EVERY_S, so that no peer can fill the disk."""
        self.refused[code] += 1
        now = time.monotonic()
        if now - self._logged.get(code, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged[code] = now
            log.warning("%s (%s; %d so far)", text, code, self.refused[code])


def check_path(what: str, path: str) -> None:
    """Raise WireError if no file on Linux can have this path. Does not access the file system."""
    if not os.path.isabs(path) or "\0" in path or len(path) > 4096:
        raise WireError(f"the {what} {path[:MAX_TEXT]!r} is not an absolute path")


def check_submit(message: wire.Submit, blob: bytes, max_graph_bytes: int) -> None:
    """Check the properties of a submit that its message type does not check. Raises WireError. Opens no file: only a
    worker, as its user, opens files.
    """
    if len(blob) > max_graph_bytes:
        raise WireError(f"a graph of {len(blob)} bytes is over the limit of {max_graph_bytes}", code="too-large")
    if not blob:
        raise WireError("the graph is empty")
    if not _KEY.fullmatch(message.key):
        raise WireError("the key is not a plain name")
    if not message.id.isprintable() or not 0 < len(message.id) <= MAX_TEXT or len(message.name) > 4 * MAX_TEXT:
        raise WireError("the id is missing or cannot be printed, or the id or the name is too long")
    if len(message.base) > MAX_BASES:
        raise WireError(f"{len(message.base)} base stores are more than {MAX_BASES}")
    places = [("store", message.store), ("interpreter", message.environment.executable)]
    for what, path in places + [("base store", base) for base in message.base]:
        check_path(what, path)
