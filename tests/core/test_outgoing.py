"""Tests of the buffer for messages that a peer has not read yet. The tests use a real pair of sockets."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from precompiled.core.outgoing import Outgoing
from precompiled.core.sockets import GuardedSocket


@pytest.fixture(params=[socket.socket, GuardedSocket])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket | GuardedSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield (ours if request.param is socket.socket else GuardedSocket(ours)), theirs
    ours.close()
    theirs.close()


Ends = tuple[socket.socket, socket.socket]


def fill(outgoing: Outgoing, size: int) -> None:
    """Send messages until the kernel's buffer is full."""
    while not outgoing.waiting:
        outgoing.add([b"x" * size])
        outgoing.flush()


def test_a_message_arrives_in_order_and_nothing_waits(ends: Ends) -> None:
    ours, theirs = ends
    outgoing = Outgoing(ours)
    assert outgoing.add([b"one ", b"", b"two "]) and outgoing.add([b"three"])
    assert (outgoing.waiting, outgoing.wants_write) == (13, True)
    assert outgoing.flush() == 13
    assert (outgoing.waiting, outgoing.wants_write) == (0, False)
    assert theirs.recv(100) == b"one two three"


def test_bytes_that_the_kernel_does_not_take_wait_until_the_peer_reads(ends: Ends) -> None:
    ours, theirs = ends
    outgoing = Outgoing(ours)
    data = bytes(range(256)) * (1 << 14)  # 4 MiB, more than a socket's buffers
    outgoing.add([data])
    sent = outgoing.flush()
    assert 0 < sent < len(data) and outgoing.waiting == len(data) - sent and outgoing.wants_write
    assert outgoing.flush() == 0, "the kernel is full"
    read = bytearray()
    while len(read) < len(data):
        read += theirs.recv(1 << 16)
        outgoing.flush()
    assert read == data and not outgoing.wants_write


def test_the_bytes_that_wait_are_bounded_but_one_message_may_have_any_size(ends: Ends) -> None:
    ours, theirs = ends
    outgoing = Outgoing(ours, limit=1000)
    fill(outgoing, 5000)
    waiting = outgoing.waiting
    assert waiting > 0
    assert not outgoing.add([b"x" * 600, b"x" * 600]) and outgoing.waiting == waiting, "it is all or nothing"
    while outgoing.waiting:
        theirs.recv(1 << 16)
        outgoing.flush()
    assert outgoing.add([b"x" * 1500]) and not outgoing.add([b"y"])


def test_a_closed_peer_ends_the_queue_without_an_error(ends: Ends) -> None:
    ours, theirs = ends
    outgoing = Outgoing(ours)
    theirs.close()
    outgoing.add([b"late"])
    assert outgoing.flush() == 0
    assert outgoing.closed and not outgoing.wants_write and outgoing.waiting == 4
    outgoing.clear()
    assert outgoing.waiting == 0


def test_a_socket_that_was_closed_here_counts_as_a_closed_peer(ends: Ends) -> None:
    ours, _ = ends
    outgoing = Outgoing(ours)
    outgoing.add([b"late"])
    ours.close()
    assert outgoing.flush() == 0 and outgoing.closed


def test_an_interrupted_send_is_tried_again_later() -> None:
    class Interrupted:
        def send(self, data: memoryview) -> int:
            raise InterruptedError(errno.EINTR, "a signal")

    outgoing = Outgoing(Interrupted())
    outgoing.add([b"data"])
    assert outgoing.flush() == 0 and outgoing.wants_write
