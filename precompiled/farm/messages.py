"""What goes to a node and comes back, and what helper and driver say to each other: msgpack, each with its length."""

from __future__ import annotations

import socket
from typing import Any, BinaryIO, Literal, TypeVar

import msgspec

from precompiled import wire
from precompiled.core.errors import WireError

_LENGTH_BYTES = 8


class _Message(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    pass


class Request(_Message, frozen=True):
    """To a node: compile this job, whose ``offer`` says in what kind of worker, and for how long at most."""

    job: wire.Job


class Result(_Message, frozen=True):
    """From a node. "refused": it cannot compile for this host; "failed": it could not compile this graph."""

    outcome: Literal["compiled", "refused", "failed"]
    artifacts: list[bytes] = []  # store/packed.py
    code: str = ""
    message: str = ""
    node: str = ""  # its host's name
    seconds: float = 0.0


class Task(_Message, frozen=True):
    """Helper to driver: have a node do this (an encoded Request). ``name``: for Ray's own lists of tasks."""

    number: int
    name: str
    request: bytes
    time_limit_s: float  # in all


class Drop(_Message, frozen=True):
    """Helper to driver: nobody waits for this task any more."""

    number: int


ToDriver = Task | Drop


class Node(msgspec.Struct, frozen=True):
    """``places``: compiles at the same time, which its resource "precompiled" says."""

    name: str
    address: str
    places: int


class Nodes(_Message, frozen=True):
    """Driver to helper: who compiles, now."""

    nodes: list[Node]


class Ended(_Message, frozen=True):
    """Driver to helper: what became of a task."""

    number: int
    result: Result


class Unusable(_Message, frozen=True):
    """Driver to helper, before it leaves."""

    message: str


FromDriver = Nodes | Ended | Unusable

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[object, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Request, Result, ToDriver, FromDriver)
}
_M = TypeVar("_M")


def encode(message: _Message) -> bytes:
    return _encoder.encode(message)


def decode(data: bytes, kind: type[_M] | object) -> _M:
    """Raises WireError."""
    try:
        return _decoders[kind].decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise WireError(f"not a message of this version: {error}") from error


def send(sock: socket.socket, message: _Message) -> None:
    data = encode(message)
    sock.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


def receive(stream: BinaryIO, kind: type[_M] | object) -> _M | None:
    """The next message; None at the end of the stream. Raises WireError, OSError."""
    head = stream.read(_LENGTH_BYTES)
    data = stream.read(int.from_bytes(head, "big")) if len(head) == _LENGTH_BYTES else b""
    return decode(data, kind) if data else None
