"""Queues bytes for a non-blocking socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol


class NonBlockingSocket(Protocol):
    """A non-blocking ``socket.socket``, or a ``sockets.GuardedSocket``."""

    def send(self, data: memoryview, /) -> int:
        """Send data. Returns the number of bytes that the kernel has taken. Raises OSError.

        If the kernel takes no bytes, the method returns 0 or raises BlockingIOError.
        """


class Outgoing:
    """A queue of bytes to one peer. ``add`` and ``flush`` never wait and never raise.

    Bytes that the kernel does not take stay in the queue. Call ``flush`` once the socket is writable. After the peer
    has closed the connection, ``flush`` sends nothing.
    """

    __slots__ = ("_limit", "_parts", "_sock", "closed", "waiting")

    def __init__(self, sock: NonBlockingSocket, limit: int | None = None) -> None:
        """``limit``: how many bytes may wait at most (None: no limit). An empty queue takes a message of any size."""
        self._sock = sock
        self._parts: deque[memoryview] = deque()
        self._limit = limit
        self.waiting = 0  # bytes
        # whether the peer has closed the stream; also set by code that reads the stream to its end
        self.closed = False

    @property
    def wants_write(self) -> bool:
        """Whether to call ``flush`` once the socket is writable."""
        return self.waiting > 0 and not self.closed

    def add(self, parts: Iterable[bytes | bytearray]) -> bool:
        """Queue the parts of one message. Returns false, and queues nothing, if the message would exceed the limit."""
        views = [memoryview(part) for part in parts if part]
        size = sum(map(len, views))
        if self._limit is not None and self.waiting and self.waiting + size > self._limit:
            return False
        self._parts += views
        self.waiting += size
        return True

    def flush(self) -> int:
        """Send as many bytes as the kernel takes now, and return their number."""
        sent = 0
        while self._parts and not self.closed:
            part = self._parts[0]
            try:
                taken = self._sock.send(part)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self.closed = True
                break
            if taken == 0:
                break
            sent += taken
            self.waiting -= taken
            if taken == len(part):
                self._parts.popleft()
            else:
                self._parts[0] = part[taken:]
        return sent

    def clear(self) -> None:
        """Drop all waiting bytes."""
        self._parts.clear()
        self.waiting = 0
