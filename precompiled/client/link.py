"""One connection to one daemon, as zmq has it; and whether one listens at all, which needs no zmq.

Importing this module is cheap, and so is ``daemon_reachable``; zmq and msgspec (20 ms each) are imported by the first
message, in the thread that sends it.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from precompiled.core import forking, kernel, paths
from precompiled.core.config import Settings
from precompiled.core.errors import ConfigError, DaemonError, WireError

if TYPE_CHECKING:
    from precompiled import wire

CONNECT_TIMEOUT_S = 1.0
HANDSHAKE_TIMEOUT_S = 5.0  # of a socket that accepts us: a stopped daemon's does, and it says nothing
ASK_S = 30.0  # of silence, while we want something of the daemon: then it is asked whether it is still at work
ANSWER_S = 5.0  # a daemon that is at work has answered by then
LINGER_MS = 1000  # at the end, for messages that have been handed to libzmq


def daemon_reachable(settings: Settings) -> bool:
    """Whether a daemon of this user or of root listens on the socket: a plain connect, some microseconds. Never raises.

    Another user's is none: it would be sent graphs, frozen weights and variables.
    """
    try:
        with _connected(settings) as sock:
            return _is_trusted(kernel.peer_of(sock).uid)
    except ConfigError:
        return False
    except OSError as error:
        # A full backlog is a busy daemon, not an absent one.
        return error.errno in (errno.EAGAIN, errno.ETIMEDOUT)


def listener(settings: Settings) -> kernel.Peer | None:
    """Who listens on the daemon's socket, as the kernel says; None where nobody does."""
    try:
        with _connected(settings) as sock:
            return kernel.peer_of(sock)
    except (OSError, ConfigError):
        return None


def _is_trusted(uid: int) -> bool:
    if uid in (os.geteuid(), 0):
        return True
    try:
        # In a container with a user namespace the host's root has no number of its own.
        with open("/proc/sys/kernel/overflowuid") as overflow, open("/proc/self/uid_map") as mapped:
            return uid == int(overflow.read()) and mapped.read().split() != ["0", "0", "4294967295"]
    except (OSError, ValueError):
        return False


@contextmanager
def _connected(settings: Settings) -> Iterator[socket.socket]:
    """Raises ConfigError where no socket can have the path, and OSError."""
    path = paths.socket_path(settings.runtime_dir)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(CONNECT_TIMEOUT_S)
        sock.connect(str(path))
        yield sock


def import_zmq() -> Any:
    with forking.held():
        import zmq

        from precompiled import wire  # noqa: F401 - with msgspec, under the same lock

        return zmq


def decode_reply(frames: list[bytes]) -> wire.DaemonMessage:
    """A reply; from a daemon of another version as the one form that all versions share. Raises DaemonError."""
    from precompiled import wire

    skewed = DaemonError(
        f"the daemon does not speak protocol {wire.PROTOCOL}", "Restart it: `precompiled restart`",
        code="protocol-version",
    )  # fmt: skip
    if len(frames) < 2:
        raise skewed
    try:
        # The answers to status and stats may be long: the daemon is trusted, and its sizes are its own.
        reply: wire.DaemonMessage = wire.decode(frames[1], wire.DaemonMessage, limit=len(frames[1]))
    except WireError as error:
        raise skewed from error
    if frames[0] != wire.PREAMBLE and not isinstance(reply, wire.Rejected):
        raise skewed
    return reply


class Link:
    """One connection to one daemon. It is never mended: a lost one is replaced, so nothing old is sent by itself."""

    def __init__(self, settings: Settings) -> None:
        zmq = self._zmq = import_zmq()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )  # fmt: skip
        self._socket.connect(paths.endpoint(settings.runtime_dir))
        self.up = False
        self._broken = False
        self._since = time.monotonic()
        self._heard = self._since  # when the daemon's last word came
        self._asked: float | None = None  # when it was asked whether it is at work, and has not answered
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def wait(self, fd: int, timeout_s: float) -> None:
        """Until a reply, a change of the connection, or something to read on ``fd``."""
        zmq = self._zmq
        self._poller.register(fd, zmq.POLLIN)
        self._poller.poll(int(timeout_s * 1000) + 1)
        while self._monitor.poll(0):
            event = int.from_bytes(self._monitor.recv_multipart()[0][:2], "little")
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.up, self._heard = True, time.monotonic()
            else:
                self._broken = True

    def send(self, message: wire.Submit | wire.Tally | wire.Expect | wire.Status, blob: bytes | None) -> bool:
        """Hand a message to libzmq; false when its queue is full."""
        from precompiled import wire

        frames = [wire.PREAMBLE, wire.encode(message)]
        if blob is not None:
            frames.append(blob)
        try:
            self._socket.send_multipart(frames, self._zmq.NOBLOCK)
        except self._zmq.Again:
            return False
        return True

    def receive(self) -> list[wire.DaemonMessage]:
        from precompiled import wire

        replies: list[wire.DaemonMessage] = []
        while True:
            try:
                frames = self._socket.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return replies
            self._heard, self._asked = time.monotonic(), None
            try:
                replies.append(decode_reply(frames))
            except DaemonError as error:
                replies.append(wire.Rejected(error.code, error.message, error.action))

    def silent_since(self, now: float) -> float | None:
        """Since when the daemon has not answered, or None. For one who waits for it: after a long silence it is asked.

        A daemon that hangs, or is stopped by a signal, keeps its connections, and libzmq says nothing of it.
        """
        if self._asked is None and now - self._heard > ASK_S:
            from precompiled import wire

            self.send(wire.Status(), None)  # where the queue is full, the silence is answer enough
            self._asked = now
        return self._asked if self._asked is not None and now - self._asked > ANSWER_S else None

    def is_lost(self, now: float) -> bool:
        return self._broken or (not self.up and now - self._since > HANDSHAKE_TIMEOUT_S)

    def close(self) -> None:
        """Bounded by LINGER_MS."""
        if self._broken or not self.up:
            self._socket.setsockopt(self._zmq.LINGER, 0)
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close()
        self._context.term()
