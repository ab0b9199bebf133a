"""The non-blocking end of a control stream to a worker or the watcher: framed messages over a Unix stream socket."""

from __future__ import annotations

import socket
from typing import Any

from precompiled import wire
from precompiled.core.errors import WireError
from precompiled.core.outgoing import Outgoing

READ_BYTES = 1 << 16


class Channel:
    """Never blocks. A message over the size limit is refused before it is buffered; writes wait in memory."""

    def __init__(
        self,
        sock: socket.socket,
        kind: object = wire.WorkerMessage,
        at_once: int = 1 << 20,
        limit: int | None = None,
        max_bytes: int = wire.MAX_MESSAGE_BYTES,
    ) -> None:
        """``kind``: the union of the messages that the other end may send. ``at_once``: how many messages one
        ``receive`` accepts; the next one raises WireError before it is decoded. ``limit``: see Outgoing.
        ``max_bytes``: the largest message that ``receive`` accepts.
        """
        sock.setblocking(False)
        self._kind, self._at_once, self._max_bytes = kind, at_once, max_bytes
        self._sock = sock
        self._incoming = bytearray()
        self._outgoing = Outgoing(sock, limit)
        self._reset = False

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def closed(self) -> bool:
        """Whether either end has closed the stream."""
        return self._outgoing.closed

    @property
    def wants_write(self) -> bool:
        return self._outgoing.wants_write

    @property
    def waiting(self) -> int:
        """How many bytes the other end has not read."""
        return self._outgoing.waiting

    def send(self, message: Any) -> bool:
        """Queue a message, and write as much as the socket accepts. Returns false, and queues nothing, if the queue is
        full.
        """
        added = self._outgoing.add([wire.frame(message)])
        self.flush()
        return added

    def flush(self) -> None:
        self._outgoing.flush()  # ignore errors: the caller also watches the peer's process

    def receive(self) -> list[Any]:
        """The complete messages received so far. Raises WireError for invalid data."""
        while not self.closed:
            try:
                data = self._sock.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                self._reset = isinstance(error, ConnectionResetError)
                data = b""
            if not data:
                self._outgoing.closed = True
                break
            self._incoming += data
            if len(self._incoming) > self._max_bytes + wire.LENGTH_BYTES:
                break  # one message is whole; the rest stays in the kernel
        messages: list[object] = []
        while len(self._incoming) >= wire.LENGTH_BYTES:
            length = int.from_bytes(self._incoming[: wire.LENGTH_BYTES], "big")
            if length > self._max_bytes:
                raise WireError(f"a message has {length} bytes, too many", code="too-large")
            end = wire.LENGTH_BYTES + length
            if len(self._incoming) < end:
                break
            if len(messages) >= self._at_once:
                raise WireError(f"more than {self._at_once} messages at once")
            data = bytes(self._incoming[wire.LENGTH_BYTES : end])
            messages.append(wire.decode(data, self._kind, self._max_bytes))
            del self._incoming[:end]
        return messages

    def left_unread(self) -> bool | None:
        """Whether the other end's process had unread data when it ended; None if it has not ended."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return None
        except OSError as error:  # the kernel reports a reset, once, if the other end had unread data
            self._reset = isinstance(error, ConnectionResetError)
        return self._reset or self._outgoing.waiting > 0

    def close(self) -> None:
        self._outgoing.clear()
        self._outgoing.closed = True
        self._sock.close()
