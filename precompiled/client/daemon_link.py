"""Speaks ZeroMQ's wire format over one connection to one daemon, and tests whether a daemon listens.

The import of this module and a call of ``daemon_reachable`` are fast. The first message imports msgspec, which takes 20
ms, in the thread that sends it.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import sys
import time
from typing import TYPE_CHECKING

from precompiled.core import forking, interruptions, kernel, paths, sockets, zmtp
from precompiled.core.config import Settings
from precompiled.core.errors import ConfigError, WireError
from precompiled.core.outgoing import Outgoing

if TYPE_CHECKING:
    from precompiled import wire

log = logging.getLogger("precompiled.client.connection")

CONNECT_TIMEOUT_S = 1.0
HANDSHAKE_TIMEOUT_S = 5.0  # seconds; a stopping daemon accepts connections, but sends nothing
# If a reply is due and the daemon sends nothing for this many seconds, the client sends a status request
ASK_S = 30.0
ANSWER_S = 5.0  # a working daemon answers the status request within this many seconds
LINGER_S = 1.0  # seconds at close for a message that the daemon has begun to read
CHUNK_BYTES = 1 << 18  # the size of one read


def daemon_reachable(settings: Settings) -> bool:
    """Whether a daemon of this user or of root listens on the socket. The check is one connect (a few microseconds).
    Never raises.

    A different user's daemon does not count: it would receive graphs, frozen weights and environment variables.
    """
    try:
        connect(settings).close()
    except (OSError, ConfigError) as error:
        interruptions.pass_on(error)
        return is_busy(error)
    return True


def is_busy(error: Exception) -> bool:
    """Whether ``connect`` failed because a daemon's backlog is full, and not because no daemon listens."""
    return isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ETIMEDOUT)


def listener(settings: Settings) -> kernel.Peer | None:
    """The process that listens on the daemon's socket, as the Linux kernel reports it. None if no process listens."""
    try:
        with _connected(settings) as sock:
            return kernel.peer_of(sock)
    except (OSError, ConfigError):
        return None


def connect(settings: Settings) -> socket.socket:
    """Connect to a daemon of this user or of root.

    Raises OSError, or ConfigError if no socket can have this path.
    """
    sock = _connected(settings)
    try:
        if _is_trusted(kernel.peer_of(sock).uid):
            return sock
        raise PermissionError(errno.EACCES, "another user's daemon listens")
    except OSError:
        sock.close()
        raise


def _is_trusted(uid: int) -> bool:
    if uid in (os.geteuid(), 0):
        return True
    try:
        # In a user namespace of a container, the host's root appears as the overflow user.
        with open("/proc/sys/kernel/overflowuid") as overflow, open("/proc/self/uid_map") as mapped:
            return uid == int(overflow.read()) and mapped.read().split() != ["0", "0", "4294967295"]
    except (OSError, ValueError) as error:
        interruptions.pass_on(error)
        return False


def _connected(settings: Settings) -> socket.socket:
    path = paths.socket_path(settings.runtime_dir)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(CONNECT_TIMEOUT_S)
        sock.connect(str(path))
    except OSError:
        sock.close()
        raise
    return sock


def import_messages() -> None:
    """Import wire and msgspec, which messages need. No fork happens during the import."""
    with forking.held():
        from precompiled import wire  # noqa: F401


def _decode(frames: list[bytes]) -> wire.DaemonMessage:
    """Decode a reply. If the reply has a different protocol version, return a Rejected. All versions can send a
    Rejected, so a Rejected is returned as received.
    """
    from precompiled import wire

    skewed = wire.Rejected(
        "protocol-version",
        f"the daemon does not speak protocol {wire.PROTOCOL}",
        "Restart it with `precompiled daemon restart`",
    )
    if len(frames) < 2:
        return skewed
    try:
        # Replies to status and stats may be long, and the client trusts the daemon, so these replies have no limit.
        reply: wire.DaemonMessage = wire.decode(frames[1], wire.DaemonMessage, limit=len(frames[1]))
    except WireError:
        return skewed
    return reply if frames[0] == wire.PREAMBLE or isinstance(reply, wire.Rejected) else skewed


class Link:
    """One connection to one daemon. After a loss, the caller makes a new Link and repeats unsent messages."""

    def __init__(self, settings: Settings) -> None:
        """Connect. Raises what ``connect`` raises."""
        self._socket = sockets.GuardedSocket(connect(settings))
        self._reader = zmtp.Reader(sys.maxsize)
        self._outgoing = Outgoing(self._socket)  # the handshake, then one message at most
        self._outgoing.add([zmtp.hello(b"DEALER")])
        self._since = time.monotonic()
        self._heard = self._since  # when the daemon last sent something
        self._asked: float | None = None  # when the unanswered status request was sent
        self._outgoing.flush()

    @property
    def up(self) -> bool:
        """Whether the handshake is complete."""
        return self._reader.ready

    def wait(self, timeout_s: float, waker: sockets.Waker | None = None) -> None:
        """Wait until the daemon sends data or accepts unsent data, the connection ends, or a thread wakes ``waker``."""
        wakers = [] if waker is None else [waker]
        sockets.wait([self._socket, *wakers], [self._socket] if self._outgoing.waiting else [], timeout_s)
        self._outgoing.flush()

    def send(self, message: wire.ClientMessage, blob: bytes | None = None) -> bool:
        """Send a message as fast as the daemon reads. Returns false, and sends nothing, while an earlier message is
        unsent.
        """
        from precompiled import wire

        if not self.up or self._outgoing.waiting or self._outgoing.closed:
            return False
        frames = [wire.PREAMBLE, wire.encode(message)]
        if blob is not None:
            frames.append(blob)
        self._outgoing.add(zmtp.parts_of(frames))
        self._outgoing.flush()
        return True

    def receive(self) -> list[wire.DaemonMessage]:
        replies: list[wire.DaemonMessage] = []
        while (data := self._socket.receive(CHUNK_BYTES)) is not None:
            if not data:
                self._outgoing.closed = True
                break
            self._heard, self._asked = time.monotonic(), None
            self._reader.feed(data)
            try:
                while (frames := self._reader.next_message()) is not None:
                    replies.append(_decode(frames))
            except WireError as error:
                log.info("the daemon sends what is not ZeroMQ's: %s", error)
                self._outgoing.closed = True
                break
            if self._reader.reply:
                reply, self._reader.reply = self._reader.reply, b""
                self._outgoing.add([reply])
                self._outgoing.flush()
        return replies

    def silent_since(self, now: float) -> float | None:
        """Return the time since which the daemon has failed to answer, or None. Called while a reply is due.

        After a long silence the client sends a status request, because a daemon that hangs keeps its connections.
        """
        if self._asked is None and now - self._heard > ASK_S:
            from precompiled import wire

            # ``send`` does nothing if the daemon has not read an earlier message yet. In that case too, the daemon must
            # send something within ANSWER_S. Otherwise the daemon hangs.
            self.send(wire.Status())
            self._asked = now
        return self._asked if self._asked is not None and now - self._asked > ANSWER_S else None

    def is_lost(self, now: float) -> bool:
        return self._outgoing.closed or (not self.up and now - self._since > HANDSHAKE_TIMEOUT_S)

    def close(self) -> None:
        """Send the rest of an unsent message within LINGER_S, then close the connection."""
        until = time.monotonic() + LINGER_S
        while self.up and self._outgoing.wants_write and (left := until - time.monotonic()) > 0:
            sockets.wait([], [self._socket], left)
            self._outgoing.flush()
        self.abandon()

    def abandon(self) -> None:
        """In a fork's child, close this process's descriptor and send nothing. The parent keeps the connection."""
        self._socket.close()
