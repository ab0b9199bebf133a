"""Defines the messages between helper, driver and nodes. A message is its length, followed by msgpack."""

from __future__ import annotations

import socket
from typing import BinaryIO, Literal, TypeVar

import msgspec

from precompiled import wire

_LENGTH_BYTES = 8


class Request(wire.Message, frozen=True):
    """To a node: compile this job. ``offer`` describes the worker and the time limit."""

    job: wire.Job


class Result(wire.Message, frozen=True):
    """From a node. "refused": it cannot compile for the client's host. "failed": it could not compile this graph."""

    outcome: Literal["compiled", "refused", "failed"]
    artifacts: list[bytes] = msgspec.field(default_factory=list)  # packed by store/packed.py
    code: str = ""
    message: str = ""
    node: str = ""  # the host name of the node
    seconds: float = 0.0


class Task(wire.Message, frozen=True):
    """Helper to driver: have a node run this encoded Request. ``name`` appears in Ray's own lists of tasks."""

    number: int
    name: str
    request: bytes
    time_limit_s: float  # limit for the whole task


class Drop(wire.Message, frozen=True):
    """Helper to driver: the result of this task is not needed any more."""

    number: int


ToDriver = Task | Drop


class Node(msgspec.Struct, frozen=True):
    """A node. ``places``: how many jobs it compiles at a time (its Ray resource "precompiled")."""

    name: str
    address: str
    places: int


class Nodes(wire.Message, frozen=True):
    """Driver to helper: the cluster's present nodes that have places."""

    nodes: list[Node]


class Ended(wire.Message, frozen=True):
    """Driver to helper: the result of a task."""

    number: int
    result: Result


class Unusable(wire.Message, frozen=True):
    """Driver to helper: the cluster cannot be used. The driver exits after this message."""

    message: str


FromDriver = Nodes | Ended | Unusable

wire.add_kinds(Request, Result, ToDriver, FromDriver)
_M = TypeVar("_M")


def decode(data: bytes, kind: type[_M] | object) -> _M:
    """Decode a message without a size limit, because a Request contains a graph. Raises WireError."""
    return wire.decode(data, kind, limit=len(data))


def send(sock: socket.socket, message: wire.Message) -> None:
    data = wire.encode(message)
    sock.sendall(len(data).to_bytes(_LENGTH_BYTES, "big") + data)


def receive(stream: BinaryIO, kind: type[_M] | object) -> _M | None:
    """The next message, or None at the end of the stream. Raises WireError, OSError."""
    head = stream.read(_LENGTH_BYTES)
    data = stream.read(int.from_bytes(head, "big")) if len(head) == _LENGTH_BYTES else b""
    return decode(data, kind) if data else None
