"""Provides sockets for background threads. The program may close the descriptors of these sockets at any time.

A program that turns into a daemon closes all descriptors (``os.closerange(3, 256)``), including precompiled's. The
files that the program opens next get the same numbers. Before each use, a ``GuardedSocket`` checks that its descriptor
still refers to the original socket. It compares ``SO_COOKIE``, which the kernel makes unique for each socket. If the
cookies differ, the GuardedSocket behaves as closed, and does not touch the program's file. In such a program, libzmq
fails an assertion, and the library watchdog reads and closes the program's files, so clients use neither.

Pipes and eventfds cannot be used, because they have no such cookie (all eventfds share one inode). Moreover, ``recv``
and ``send`` fail on an ordinary file.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Sequence

from precompiled.core import interruptions

_SO_COOKIE = 57  # asm-generic/socket.h
_FLAGS = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL  # without MSG_NOSIGNAL, SIGPIPE might end the program


class GuardedSocket:
    """A connected socket that never blocks. If the program closes the descriptor, the socket behaves as if the peer had
    closed it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._identity = _identity_of(sock)

    def fileno(self) -> int:
        """The descriptor, or -1 once this object or the program has closed it."""
        if _identity_of(self._sock) != self._identity:
            self._sock.detach()  # ``close`` would close the program's file
        return self._sock.fileno()

    def send(self, data: bytes | memoryview) -> int:
        """Send as many bytes as the kernel takes now, and return their number. Raises OSError."""
        if self.fileno() < 0:
            raise BrokenPipeError("the descriptor was closed")
        try:
            return self._sock.send(data, _FLAGS)
        except BlockingIOError:
            return 0

    def receive(self, size: int) -> bytes | None:
        """The bytes that have arrived. None: no bytes yet. b"": the stream's end."""
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
            self.close()  # else the socket's finalizer closes any file with its number


class Waker:
    """Ends the ``wait`` of another thread."""

    def __init__(self) -> None:
        self._waiting, self._waking = pair()

    def fileno(self) -> int:
        return self._waiting.fileno()

    def is_open(self) -> bool:
        return self._waiting.fileno() >= 0 and self._waking.fileno() >= 0

    def wake(self) -> None:
        try:
            self._waking.send(b"\0")
        except OSError as error:  # the waiting thread sees that the other end is closed
            interruptions.pass_on(error)

    def clear(self) -> None:
        """Discard the wakes so far."""
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
    """Wait until a socket can be read or written, or is closed, or ``timeout_s`` seconds have passed."""
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
    # During a poll, the kernel keeps a reference to each socket. So the poll does not end if the program closes only a
    # GuardedSocket. It ends if the program closes all descriptors, because the other end of the Waker is then closed.
    poll.poll(None if timeout_s is None else int(max(0.0, timeout_s) * 1000) + 1)


def _identity_of(sock: socket.socket) -> object:
    """A value that differs for every socket. None if the descriptor is closed or not a socket."""
    try:
        # Unlike fstat, getsockopt keeps the GIL. So no other thread can close the socket before the caller uses it.
        return sock.getsockopt(socket.SOL_SOCKET, _SO_COOKIE, 8)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            return None
    try:  # a sandbox without socket cookies, such as gVisor
        found = os.fstat(sock.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino
