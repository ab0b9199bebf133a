"""Support: a bare client socket. A test can stop reading from the socket, or close it without sending a message."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support_daemon import TIMEOUT_S

from precompiled import wire
from precompiled.core import zmtp


class Peer:
    def __init__(self, runtime_dir: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(runtime_dir / "socket"))
        self._reader = zmtp.Reader(1 << 20)
        self.sock.sendall(zmtp.hello(b"DEALER"))

    def send(self, message: Any, *blob: bytes) -> None:
        self.sock.sendall(zmtp.encode([wire.PREAMBLE, wire.encode(message), *blob]))

    def receive(self) -> Any:
        """The next reply; None if the daemon has closed the connection."""
        while (found := self._reader.next_message()) is None:
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._reader.feed(data)
        return wire.decode(found[1], wire.DaemonMessage)


@contextlib.contextmanager
def connected(runtime_dir: Path) -> Iterator[Peer]:
    peer = Peer(runtime_dir)
    with peer.sock:
        yield peer
