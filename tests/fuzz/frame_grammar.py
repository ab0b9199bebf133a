"""Draws the messages of ``make fuzz-frames``.

The grammar takes valid messages of each kind, and mutates their fields, bytes, frames and the ZMTP protocol. A seed
reproduces the whole sequence of messages.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from precompiled import wire

# Values for mutated fields. Each value is encoded once, so that a large value costs nothing per message.
_ODD = [
    msgspec.Raw(msgspec.msgpack.encode(odd))
    for odd in (  # type: ignore[var-annotated]
        None,
        True,
        -1,
        0,
        1 << 63,
        (1 << 64) - 1,
        -(1 << 63),
        1e308,
        float("nan"),
        float("inf"),
        "",
        "\0",
        "x" * 70_000,
        b"\xff" * 100,
        [],
        {},
        [[]] * 50,
        {"a": {"b": {}}},
        "../../x",
        "/",
        "cuda:GPU-x",
        "cpu",
        ["a"] * 5000,
        {str(n): n for n in range(3000)},
        "submit",
        "stop",
        "\n",
        "\u202e",
        "A=B",
    )
]
_SMALL = [odd for odd in _ODD if len(bytes(odd)) < 200]
_INSERTED = ["\n", "\0", "é", "/", "..", "=", "x" * 300]
# Headers of msgpack that announce more bytes than follow, or a type that no message has.
_HEADERS = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\x7f\xff\xff\xff",
    b"\x91" * 500,
    b"\x91" * 100_000,
    b"\xc1",
    b"\xd4\x01\x00",
    b"\xc7\xff\x05",
    b"\xd9\xff",
    b"\xde\xff\xff",
]
_PREAMBLES = [b"precompiled/1", b"precompiled/3", b"precompiled/", b"", b"precompiled/" + b"9" * 300, b"\0" * 64]
_SIZES = [1 << 63, (1 << 64) - 1, 1 << 40, 1 << 31]
_GREETING = (b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0")).ljust(64, b"\0")
_READY = b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06DEALER"


def templates(store: Path, interpreter: Path) -> list[bytes]:
    """Returns at least one valid, encoded message of each kind. The executable ``interpreter`` compiles nothing."""

    def environment(executable: object, **variables: str) -> wire.Interpreter:
        return wire.Interpreter(str(executable), "/", "3.0", "2.0", "", variables)

    published = environment(interpreter)
    submits = [
        wire.Submit("an-id", "key", str(store), published, "cpu", "Model.forward [0/0]", True, ["/base"]),
        # Each mutation of this environment starts another worker. /bin/false ends at once, so workers do not pile up.
        wire.Submit("other", "key2", str(store), environment("/bin/false", CXX="c++", PATH="/bin"), "cpu"),
    ]
    messages = [
        *submits,
        *submits,
        wire.Tally(1, 2, 3, 4, 5.0, 6, 7, {"a": 1}, {"b": 2}, {"c": 3}, {"d": 4}, {"e": 5}),
        wire.Expect(environment("/bin/false"), "cpu", "/nowhere"),
        wire.Status(),
        wire.Stats(),
        wire.Watches(),
        wire.Stop(),
        wire.GiveUp(["key"]),
        wire.Retry(["key"]),
        wire.Unwatch(["x"]),
        wire.Watch(wire.Registration("entry", ["a:b"], "/bin/true", "/", str(store), {"A": "b"}, ["/f"])),
    ]
    return [wire.encode(message) for message in messages]


def _places(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Returns the places that can be mutated: each container in a message, with each of its indexes."""
    found: list[tuple[Any, Any]] = []
    if depth < 5 and isinstance(value, (dict, list)):
        for index in list(value) if isinstance(value, dict) else range(min(len(value), 4)):
            found.append((value, index))
            found += _places(value[index], depth + 1)
    return found


def _nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


class Grammar:
    """Draws messages. ``frames`` draws the frames of one message, and ``stream`` the bytes of a whole connection."""

    def __init__(self, seed: int, encoded: list[bytes], max_graph_bytes: int) -> None:
        self._random = random.Random(seed)
        self._encoded = encoded
        self._max_graph_bytes = max_graph_bytes

    def frames(self) -> list[bytes]:
        """Draw the frames of one message. The message does not stop the daemon or exceed the socket's size limit."""
        drawn = self._random
        template = drawn.choice(self._encoded)
        message: Any = msgspec.msgpack.decode(template)
        is_submit = message["type"] == "submit"
        # Watch messages get only small values, because the daemon repeats these values in each status reply to each
        # connection.
        odd = _SMALL if message["type"] == "watch" else _ODD
        for _ in range(drawn.choice((0, 0, 0, 1, 1, 1, 2, 4))):
            self._mutate(message, odd)
        if is_submit and drawn.random() < 0.9:
            message["key"] = f"fuzz{drawn.randrange(400)}"
        data = self._bytes(bytearray(msgspec.msgpack.encode(message)))
        blobs = [drawn.choice((b'{"do": "exists"}', b'{"do": "exists"}', b"x", b""))] if is_submit else []
        found = self._arrange([wire.PREAMBLE, data, *blobs])
        return [*found[:1], b"\xc0", *found[2:]] if len(found) > 1 and _is_stop(found[1]) else found

    def _mutate(self, message: dict[str, Any], odd: list[msgspec.Raw]) -> None:
        drawn = self._random
        places = _places(message)
        if not places:
            return
        container, index = drawn.choice(places)
        value, kind = container[index], drawn.random()
        if kind < 0.5:
            container[index] = drawn.choice(odd)
        elif kind < 0.6:
            del container[index]
        elif kind < 0.7 and isinstance(container, dict):
            container[drawn.choice(("type", "id", "x", "key", "", "\0"))] = drawn.choice(odd)
        elif kind < 0.75:
            container[index] = _nested(drawn.choice((10, 100, 300)))
        elif isinstance(value, str):
            at = drawn.randrange(len(value) + 1)
            container[index] = value[:at] + drawn.choice(_INSERTED) + value[at:]

    def _bytes(self, data: bytearray) -> bytes:
        drawn = self._random
        kind = drawn.random()
        if kind < 0.2:
            for _ in range(drawn.choice((1, 1, 2, 8))):
                data[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
        elif kind < 0.23:
            del data[drawn.randrange(len(data)) :]
        elif kind < 0.25:
            data += drawn.randbytes(drawn.randrange(1, 50))
        elif kind < 0.28:
            at = drawn.randrange(len(data) + 1)
            data[at:at] = drawn.choice(_HEADERS)
        elif kind < 0.30:
            data = bytearray(drawn.randbytes(drawn.randrange(300)))
        elif kind < 0.302:
            # A message that exceeds the limit of a message, but not the limit of the socket.
            data += bytes(wire.MAX_MESSAGE_BYTES - len(data) + 1)
        return bytes(data)

    def _arrange(self, frames: list[bytes]) -> list[bytes]:
        drawn = self._random
        kind = drawn.random()
        if kind < 0.02:
            frames[0] = drawn.choice(_PREAMBLES)
        elif kind < 0.04:
            frames.append(drawn.randbytes(drawn.randrange(200)))
        elif kind < 0.05:
            del frames[drawn.randrange(1, len(frames) + 1) :]
        elif kind < 0.055:
            frames += [b""] * drawn.choice((1, 5, 50, 500))
        elif kind < 0.06:
            frames = [b""] * drawn.randrange(1, 5)
        elif kind < 0.062 and len(frames[1]) < wire.MAX_MESSAGE_BYTES // 2:
            frames[2:] = [bytes(self._max_graph_bytes + 1)]
        return frames

    def stream(self) -> bytes:
        """Draw the bytes of a connection that violates ZMTP, or uses a different protocol."""
        drawn = self._random
        good = _zmtp(wire.PREAMBLE, more=True) + _zmtp(wire.encode(wire.Status()), more=False)
        begun = _GREETING + _READY
        kinds: list[Callable[[], bytes]] = [
            lambda: drawn.randbytes(drawn.randrange(1, 500)),
            lambda: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            lambda: _flipped(drawn, _GREETING) + _READY + good,
            lambda: _GREETING + _flipped(drawn, _READY) + good,
            lambda: _GREETING + good,  # a message before the end of the handshake
            lambda: begun + _flipped(drawn, good),
            lambda: begun + good[: drawn.randrange(len(good))],
            lambda: begun + b"\x02" + drawn.choice(_SIZES).to_bytes(8, "big"),
            lambda: begun + bytes(self._max_graph_bytes // 4) * 5,
            lambda: begun + b"\x01\x00" * drawn.choice((10, 2000)) + good,
            lambda: begun + b"\x04\x00" * 20 + good,
            lambda: begun + b"\x04\xff\x04PING" + bytes(249),
            lambda: _GREETING + _READY * 2 + good,
            lambda: (begun + good)[: drawn.randrange(1, 120)],
        ]
        return drawn.choice(kinds)()


def _flipped(drawn: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(drawn.choice((1, 1, 2, 8))):
        found[drawn.randrange(len(found))] ^= 1 << drawn.randrange(8)
    return bytes(found)


def _zmtp(frame: bytes, *, more: bool) -> bytes:
    return bytes([int(more), len(frame)]) + frame


def _is_stop(data: bytes) -> bool:
    try:
        return isinstance(wire.decode(data, wire.ClientMessage), wire.Stop)
    except wire.WireError:
        return False
