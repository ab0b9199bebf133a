"""Tests of connections and their limits per user, with real sockets and fake users. The tests run the turns of the
daemon themselves.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from precompiled.service import connections as module
from precompiled.service.connections import Connections
from support_daemon import TIMEOUT_S, wait_until

from precompiled.core import zmtp
from precompiled.core.errors import WireError

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
READY = b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
CAPACITY = 8
MAX_MESSAGE = 1 << 20


class Host:
    """A listening socket served by ``Connections``. ``uid`` is the user of the connection that is accepted next."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "s")
        self.uid = 1
        self.noted: list[str] = []
        self.denied: list[list[int]] = []
        self.clients: list[socket.socket] = []
        self.daemon = Connections(
            MAX_MESSAGE,
            8 << 20,
            lambda code, _: self.noted.append(code),
            lambda _: (1, self.uid, self.uid),
            lambda uids: self.denied.append(sorted(uids)),
        )
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(self.path)
        self.daemon.open(listening, CAPACITY)

    def begin(self) -> socket.socket:
        """Connect a client. The daemon does not accept the connection yet."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(TIMEOUT_S)
        sock.connect(self.path)
        self.clients.append(sock)
        return sock

    def connect(self, uid: int, said: bytes = GREETING + READY) -> socket.socket:
        """Connect a client of user ``uid`` that sends ``said``, and let the daemon accept the connection and read."""
        sock = self.begin()
        sock.sendall(said)
        self.uid = uid
        self.daemon.collect()
        assert self.turn() == []
        return sock

    def turn(self) -> list[tuple[int, list[bytes]]]:
        self.daemon.collect()
        return [(connection.uid, frames) for connection, frames in self.daemon.messages()]

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.daemon.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path)
    yield found
    found.close()


def has_data(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])


def is_open(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        while data := sock.recv(1 << 16):
            del data
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@pytest.mark.fault("load")
def test_a_users_many_messages_do_not_delay_another_user(host: Host) -> None:
    noisy = [host.connect(1) for _ in range(4)]
    quiet = host.connect(2)
    for sock in noisy:
        sock.sendall(zmtp.encode([b"noise"]) * 5000)
    quiet.sendall(zmtp.encode([b"one"]))
    first = host.turn()
    assert (2, [b"one"]) in first and len(first) < 20_000, "one turn does not handle all noisy messages"
    received = [*first]

    def has_all() -> bool:
        received.extend(host.turn())
        return len(received) == 4 * 5000 + 1

    wait_until(has_all, "the end of the noise", pause_s=0.0)


@pytest.mark.fault("load")
def test_a_users_many_new_connections_do_not_delay_another_user(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.daemon._limit = host.daemon._capacity = 200
    monkeypatch.setattr(module, "ACCEPT_S", TIMEOUT_S)
    for name in ("TURN_S", "USER_TURN_S"):  # with no time budget, a turn greets one connection of each user
        monkeypatch.setattr(module, name, 0.0)
    users = iter([1] * 100 + [2])
    monkeypatch.setattr(host.daemon, "_identify", lambda _: (1, user := next(users), user))
    *many, quiet = [host.begin() for _ in range(101)]
    host.daemon.collect()
    assert has_data(quiet) and sum(map(has_data, many)) == 1
    wait_until(lambda: host.turn() == [] and all(map(has_data, many)), "the many", pause_s=0.0)


@pytest.mark.fault("load")
def test_new_connections_of_a_user_are_limited(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACCEPT_S", TIMEOUT_S)
    monkeypatch.setattr(module, "MAX_NEW", 3)
    many = [host.begin() for _ in range(5)]
    host.daemon.collect()
    assert [is_open(sock) for sock in many] == [True, True, True, False, False]
    assert host.noted == ["too-many-connections"] * 2


def test_a_user_over_the_limit_of_new_connections_is_denied_the_socket_for_a_while(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ACCEPT_S", TIMEOUT_S)
    monkeypatch.setattr(module, "MAX_NEW", 3)
    for _ in range(5):
        host.begin()
    host.daemon.collect()
    assert host.denied == [[1]]
    for connection in list(host.daemon._by_fd.values()):
        host.daemon._drop(connection)
    wake = host.daemon.next_wake(host.daemon._sweep_at)
    assert wake == 0.0, "the daemon wakes to end the denial even without connections"
    host.daemon._sweep(next(iter(host.daemon._denied.values())))
    assert host.denied == [[1], []]


@pytest.mark.fault("load")
def test_a_user_with_all_connections_loses_one_to_another_user(host: Host) -> None:
    many = [host.connect(1) for _ in range(CAPACITY)]
    one = host.connect(2)
    assert is_open(one) and sum(map(is_open, many)) == CAPACITY - 1
    two = host.connect(3)
    assert is_open(one) and is_open(two) and sum(map(is_open, many)) == CAPACITY - 2


def test_active_connections_are_kept_and_the_same_users_next_one_is_refused(host: Host) -> None:
    many = [host.connect(1) for _ in range(CAPACITY)]
    assert not is_open(host.connect(1)) and all(map(is_open, many))
    assert "too-many-connections" in host.noted


def test_a_silent_connection_is_closed_for_the_same_users_next_one(host: Host) -> None:
    silent = host.connect(1, b"")
    many = [host.connect(1) for _ in range(CAPACITY - 1)]
    assert is_open(host.connect(1)) and all(map(is_open, many)) and not is_open(silent)


@pytest.mark.fault("hangs")
@pytest.mark.parametrize(
    ("said", "code"), [(b"", "no-handshake"), (GREETING + READY + b"\x02" + bytes(6) + b"\x0f\xff", "stalled")]
)
def test_a_peer_that_stops_within_a_handshake_or_message_is_dropped(
    host: Host, monkeypatch: pytest.MonkeyPatch, said: bytes, code: str
) -> None:
    sock = host.connect(1, said)
    other = host.connect(1)
    for name in ("HANDSHAKE_S", "STALLED_S"):
        monkeypatch.setattr(module, name, 0.0)
    host.daemon._sweep_at = 0.0
    host.turn()
    assert not is_open(sock) and is_open(other) and host.noted == [code]


@pytest.mark.fault("load")
def test_a_peer_whose_bytes_the_daemon_has_not_handled_yet_is_not_dropped_as_stalled(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TURN_S", "USER_TURN_S", "HANDSHAKE_S", "STALLED_S"):  # a turn handles one message of each user
        monkeypatch.setattr(module, name, 0.0)
    sock = host.begin()
    sock.sendall(GREETING + READY + zmtp.encode([b"one"]) * 100)
    host.uid = 1
    got = []

    def has_all() -> bool:
        host.daemon._sweep_at = 0.0
        got.extend(host.turn())
        return len(got) == 100

    wait_until(has_all, pause_s=0.0)
    assert is_open(sock) and host.noted == []


@pytest.mark.fault("load")
def test_incomplete_messages_are_limited_and_all_are_completed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 300_000)
    size = 200_000
    whole = b"\x02" + struct.pack(">Q", size) + b"x" * size
    socks = [host.connect(1) for _ in range(5)]
    for sock in socks:
        sock.setblocking(False)
    left = dict.fromkeys(socks, whole)
    for _ in range(50):  # send all bytes except the last, so that no message is complete
        for sock in socks:
            try:
                left[sock] = left[sock][sock.send(left[sock][:-1]) :]
            except BlockingIOError:
                pass
        assert host.turn() == []
    held = sum(connection.held for connection in host.daemon._by_fd.values())
    assert held < 300_000 + 2 * module.CHUNK_BYTES
    got = 0

    def finish() -> bool:
        nonlocal got
        for sock in socks:
            try:
                left[sock] = left[sock][sock.send(left[sock]) :] if left[sock] else b""
            except BlockingIOError:
                pass
        got += len(host.turn())
        return got == len(socks)

    wait_until(finish, "every message")
    assert not host.daemon._held and not host.daemon._paused.get(1)


@pytest.mark.fault("load")
def test_unread_replies_are_limited(host: Host) -> None:
    sock = host.connect(1)
    (name,) = host.daemon._by_name
    sent = 0
    while host.daemon.send(name, b"x" * 10_000):
        sent += 10_000
    assert sent < 2 * module.REPLY_BYTES
    read = 0
    while read < sent:
        read += len(sock.recv(1 << 16))
        host.daemon.collect()


def test_dealers_with_the_same_identity_each_get_their_reply(tmp_path: Path) -> None:
    host = Host(tmp_path)
    context = zmq.Context()
    dealers = []
    try:
        for _ in range(3):
            dealer = context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.IDENTITY, b"the same")
            dealer.setsockopt(zmq.HEARTBEAT_IVL, 10)
            dealer.connect(f"ipc://{host.path}")
            dealer.send_multipart([b"a", b"b" * 1000])
            dealers.append(dealer)
        seen: list[bytes] = []

        def look() -> bool:
            host.daemon.collect()
            for connection, frames in host.daemon.messages():
                assert frames == [b"a", b"b" * 1000]
                host.daemon.send(connection.name, zmtp.encode([connection.name, b"c" * 1000]))
                seen.append(connection.name)
            return len(seen) == 3

        wait_until(look, "three messages")
        names = [dealer.recv_multipart()[0] for dealer in dealers if dealer.poll(int(TIMEOUT_S * 1000))]
        assert sorted(names) == sorted(seen)
    finally:
        for dealer in dealers:
            dealer.close()
        context.term()
        host.close()


@pytest.mark.fault("frames")
@given(st.binary(max_size=300), st.lists(st.integers(1, 40)))
@settings(max_examples=300, deadline=None)
def test_the_reader_raises_only_wire_error_for_any_bytes(data: bytes, cuts: list[int]) -> None:
    reader = zmtp.Reader(MAX_MESSAGE)
    parts = [GREETING + READY, data] if data[:1] < b"\x80" else [data]
    for part in parts:
        at = 0
        while at < len(part):
            size = cuts.pop() if cuts else len(part)
            reader.feed(part[at : at + size])
            at += size
            try:
                while reader.next_message() is not None:
                    pass
            except WireError:
                return


@given(st.lists(st.lists(st.binary(max_size=600), min_size=1, max_size=4), max_size=5), st.integers(1, 700))
@settings(max_examples=200, deadline=None)
def test_messages_are_read_as_they_were_sent_whatever_the_pieces(messages: list[list[bytes]], cut: int) -> None:
    reader = zmtp.Reader(MAX_MESSAGE)
    data = GREETING + READY + b"".join(map(zmtp.encode, messages))
    found = []
    for at in range(0, len(data), cut):
        reader.feed(data[at : at + cut])
        while (message := reader.next_message()) is not None:
            found.append(message)
    assert found == messages


def test_the_limit_of_descriptors_leaves_some_for_workers() -> None:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 0 < module.capacity() <= max(1, soft - len(os.listdir("/proc/self/fd")))
