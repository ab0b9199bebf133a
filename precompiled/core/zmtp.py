"""Implements ZMTP 3.0, ZeroMQ's wire format, between the daemon (a ROUTER) and a client (a DEALER). Does no I/O.

Neither side uses libzmq, because a failed assertion of libzmq ends the process. A peer of the daemon could cause this
(docs/decisions/0056). A program that closes all descriptors could cause it, too (sockets.py).

Source: the ZeroMQ message transport protocol, version 3.0 (rfc.zeromq.org/spec/23).
"""

from __future__ import annotations

from precompiled.core.errors import WireError

GREETING_BYTES = 64
KEPT_FRAMES = 4  # how many frames of a message the reader keeps; it drops further frames
MAX_PARTS = 1024  # frames and commands up to the end of one message
MAX_COMMAND_BYTES = 8 << 10
_MORE, _LONG, _COMMAND = 1, 2, 4
_SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
_GREETING = (_SIGNATURE + b"\x03\x00" + b"NULL".ljust(20, b"\0")).ljust(GREETING_BYTES, b"\0")


def _property(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value


def _command(name: bytes, body: bytes) -> bytes:
    data = bytes([len(name)]) + name + body
    return bytes([_COMMAND, len(data)]) + data


def hello(role: bytes) -> bytes:
    """Return the bytes that a side sends first. ``role``: b"ROUTER" or b"DEALER"."""
    return _GREETING + _command(b"READY", _property(b"Socket-Type", role) + _property(b"Identity", b""))


def encode(frames: list[bytes]) -> bytes:
    """The bytes of one message."""
    return b"".join(parts_of(frames))


def parts_of(frames: list[bytes]) -> list[bytes]:
    """The bytes of one message, as a list of parts. The frames are not copied."""
    parts = []
    for number, frame in enumerate(frames):
        more = _MORE if number < len(frames) - 1 else 0
        if len(frame) < 256:
            parts.append(bytes([more, len(frame)]))
        else:
            parts.append(bytes([more | _LONG]) + len(frame).to_bytes(8, "big"))
        parts.append(frame)
    return parts


class Reader:
    """Parses a peer's bytes: ``feed`` them, then call ``next_message`` until it returns None."""

    def __init__(self, max_bytes: int) -> None:
        """``max_bytes``: the limit of one message. A longer message raises WireError, and none of its bytes is kept."""
        self._max_bytes = max_bytes
        self._data = bytearray()
        self._at = 0  # the position in _data up to which it is parsed
        self._frames: list[bytes] = []
        self._frame_bytes = 0  # bytes of the present message's frames, including dropped frames
        self._greeted = False
        self.ready = False  # whether the handshake is complete
        self._parts = 0
        self.reply = b""  # answers the last command; the caller sends it

    @property
    def held(self) -> int:
        """The number of bytes that this reader holds in memory."""
        return len(self._data) + self._frame_bytes

    def feed(self, data: bytes) -> None:
        self._data += data

    def next_message(self) -> list[bytes] | None:
        """The frames of the next complete message, or None if it is incomplete. Raises WireError for invalid bytes; the
        caller must then close the connection.
        """
        if not self._greeted and not self._greet():
            return None
        while (found := self._next_frame()) is not None:
            flags, body = found
            self._parts += 1
            if self._parts > MAX_PARTS:
                raise WireError(f"a message of more than {MAX_PARTS} frames")
            if flags & _COMMAND:
                self._obey(body)
            elif not self.ready:
                raise WireError("a message before the handshake")
            else:
                if len(self._frames) < KEPT_FRAMES:
                    self._frames.append(body)
                    self._frame_bytes += len(body)
                if not flags & _MORE:
                    frames, self._frames, self._frame_bytes, self._parts = self._frames, [], 0, 0
                    return frames
        del self._data[: self._at]
        self._at = 0
        return None

    def _greet(self) -> bool:
        data = self._data
        if data[:1] not in (b"", b"\xff") or (len(data) >= 10 and not data[9] & 1) or (len(data) > 10 and data[10] < 3):
            raise WireError("not ZeroMQ's protocol, or a version before 3.0")
        if len(data) < GREETING_BYTES:
            return False
        if data[12:32].rstrip(b"\0") != b"NULL":
            raise WireError("a security mechanism that this socket does not have")
        self._at = GREETING_BYTES
        self._greeted = True
        return True

    def _next_frame(self) -> tuple[int, bytes] | None:
        data, at = self._data, self._at
        if len(data) - at < 2:
            return None
        flags = data[at]
        if flags & ~(_MORE | _LONG | _COMMAND) or (flags & _COMMAND and flags & _MORE):
            raise WireError("a frame with unknown flags")
        start = at + (9 if flags & _LONG else 2)
        if len(data) < start:
            return None
        size = int.from_bytes(data[at + 1 : start], "big")
        total, limit = (size, MAX_COMMAND_BYTES) if flags & _COMMAND else (size + self._frame_bytes, self._max_bytes)
        if total > limit:
            raise WireError(f"a message of {total} bytes was announced", code="too-large")
        if len(data) - start < size:
            return None
        self._at = start + size
        return flags, bytes(memoryview(data)[start : self._at])

    def _obey(self, body: bytes) -> None:
        length = body[0] if body else 0
        name, rest = body[1 : 1 + length], body[1 + length :]
        if name == b"READY" and not self.ready:
            self.ready = True  # the peer's properties are ignored, because they are only claims
        elif name == b"PING" and self.ready:
            self.reply = _command(b"PONG", rest[2:18])  # a PONG repeats the bytes after the PING's time to live
        elif name not in (b"PONG", b"SUBSCRIBE", b"CANCEL"):
            raise WireError(f"an unknown command {name[:20]!r}")
