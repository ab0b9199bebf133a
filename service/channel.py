"""The end of a control stream that must not block: framed messages over a Unix stream socket (worker, watcher)."""

from __future__ import annotations

import socket
from typing import Any

from precompiled import wire
from precompiled.core.errors import WireError
from precompiled.core.outgoing import Outgoing

READ_BYTES = 1 << 16


class Channel:
    """Never blocks. Reads are capped before they are kept, writes wait in memory until the worker takes them."""

    def __init__(self, sock: socket.socket, kind: object = wire.WorkerMessage, at_once: int = 1 << 20) -> None:
        """``kind``: the union of the messages that the other end may send. ``at_once``: how many of them may have come
        at one ``receive``; more are an error, before they are decoded.
        """
        sock.setblocking(False)
        self._kind, self._at_once = kind, at_once
        self._sock = sock
        self._incoming = bytearray()
        self._outgoing = Outgoing(sock)

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def closed(self) -> bool:
        """Whether the other end has closed the stream, or this one."""
        return self._outgoing.closed

    @property
    def wants_write(self) -> bool:
        return self._outgoing.wants_write

    def send(self, message: Any) -> None:
        """Queue a message and write what can be written now."""
        self._outgoing.add([wire.frame(message)])
        self.flush()

    def flush(self) -> None:
        self._outgoing.flush()  # if the worker is gone, its process says so

    def receive(self) -> list[Any]:
        """The messages that have come whole; raises WireError for anything else."""
        while not self.closed:
            try:
                data = self._sock.recv(READ_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                self._outgoing.closed = True
                break
            self._incoming += data
            if len(self._incoming) > wire.MAX_MESSAGE_BYTES + wire.LENGTH_BYTES:
                break  # enough for one message at least; the rest stays in the kernel
        messages: list[Any] = []
        while len(self._incoming) >= wire.LENGTH_BYTES:
            length = int.from_bytes(self._incoming[: wire.LENGTH_BYTES], "big")
            if length > wire.MAX_MESSAGE_BYTES:
                raise WireError(f"a message of {length} bytes was announced", code="too-large")
            end = wire.LENGTH_BYTES + length
            if len(self._incoming) < end:
                break
            if len(messages) >= self._at_once:
                raise WireError(f"more than {self._at_once} messages at once")
            messages.append(wire.decode(bytes(self._incoming[wire.LENGTH_BYTES : end]), self._kind))
            del self._incoming[:end]
        return messages

    def close(self) -> None:
        self._outgoing.clear()
        self._outgoing.closed = True
        self._sock.close()
