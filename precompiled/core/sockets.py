"""Sockets that a background thread keeps while the program runs, and that the program may close at any time.

A program that turns into a daemon closes all of its descriptors (``os.closerange(3, 256)``), also those that it did not
open. Its next files get the same numbers. A ``GuardedSocket`` compares, before each use, the socket under its number
with the socket that it opened (``SO_COOKIE``, which the kernel gives to one socket only). If they differ, the socket
has ended: no byte of the program's file is read or written, and the file stays open.

Sockets rather than pipes and eventfds: these have no such number (all eventfds share one inode), and ``recv`` and
``send`` fail on what is not a socket.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Sequence

_SO_COOKIE = 57  # asm-generic/socket.h
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL  # a program may have SIGPIPE end it


class GuardedSocket:
    """A connected socket that never blocks. One that the program has closed counts as one whose peer has closed it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._identity = _identity_of(sock)

    def fileno(self) -> int:
        """The descriptor; -1 once it is closed, by us or by the program."""
        if _identity_of(self._sock) != self._identity:
            self._sock.detach()  # to close it would close the program's file
        return self._sock.fileno()

    def send(self, data: bytes | memoryview) -> int:
        """How many bytes the kernel has taken; 0: none for now. Raises OSError."""
        if self.fileno() < 0:
            raise BrokenPipeError("the descriptor was closed")
        try:
            return self._sock.send(data, _FLAGS)
        except BlockingIOError:
            return 0

    def receive(self, size: int) -> bytes | None:
        """What has arrived: None if nothing has, b"" at the end."""
        if self.fileno() < 0:
            return b""
        try:
            return self._sock.recv(size, _FLAGS)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def close(self) -> None:
        if self.fileno() >= 0:
            self._sock.close()

    def __del__(self) -> None:
        if hasattr(self, "_identity"):
            self.close()  # the socket's own finalizer would close whatever has the number


class Waker:
    """Ends another thread's ``wait``."""

    def __init__(self) -> None:
        self._waiting, self._waking = pair()

    def fileno(self) -> int:
        return self._waiting.fileno()

    def is_open(self) -> bool:
        return self._waiting.fileno() >= 0 and self._waking.fileno() >= 0

    def wake(self) -> None:
        try:
            self._waking.send(b"\0")
        except OSError:
            pass  # the waiting thread has noticed: its end has hung up

    def clear(self) -> None:
        """Forget the wakes so far."""
        while self._waiting.receive(4096):
            pass

    def close(self) -> None:
        self._waiting.close()
        self._waking.close()


def pair() -> tuple[GuardedSocket, GuardedSocket]:
    ours, theirs = socket.socketpair()
    return GuardedSocket(ours), GuardedSocket(theirs)


def wait(
    reading: Sequence[GuardedSocket | Waker], writing: Sequence[GuardedSocket] = (), timeout_s: float | None = None
) -> None:
    """Until something can be read or written, or one of them has ended, or ``timeout_s`` seconds have passed."""
    poll = select.poll()
    events: dict[int, int] = {}
    for flag, sockets in ((select.POLLIN, reading), (select.POLLOUT, writing)):
        for each in sockets:
            fd = each.fileno()
            if fd < 0:
                return
            events[fd] = events.get(fd, 0) | flag
    for fd, wanted in events.items():
        poll.register(fd, wanted)
    # The kernel keeps what it polls, so a close by the program is not an event of a socket. It is one of a Waker, whose
    # other socket hangs up.
    poll.poll(None if timeout_s is None else int(max(0.0, timeout_s) * 1000) + 1)


def _identity_of(sock: socket.socket) -> object:
    """What tells a socket from all others; None if its number is closed, or names something else than a socket."""
    try:
        # getsockopt keeps the GIL, unlike fstat: the program's threads stand still until the next call, which uses it.
        return sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            return None
    try:  # a sandbox without cookies, as gVisor
        found = os.fstat(sock.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino
