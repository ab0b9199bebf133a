"""Tests of sockets whose descriptor numbers the program has reused for its own files and sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from precompiled.core import sockets

TIMEOUT_S = 30.0


@pytest.fixture(autouse=True, params=["cookies", "inodes"])
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test twice: with the kernel's socket cookies, and as if the kernel had no socket cookies."""
    if request.param == "inodes":
        monkeypatch.setattr(sockets, "_SO_COOKIE", 9999)
    with socket.socket(socket.AF_UNIX) as sock:
        assert isinstance(sockets._identity_of(sock), tuple if request.param == "inodes" else bytes)


@contextmanager
def file_under(number: int, path: Path) -> Iterator[None]:
    """Open a file of the program under the descriptor ``number``. At the end, the file must be open and hold only what
    the program wrote.
    """
    own = os.open(path, os.O_RDWR | os.O_CREAT)
    os.dup2(own, number)
    os.close(own)
    os.write(number, b"the program's")
    try:
        yield
        assert os.pread(number, 100, 0) == b"the program's"
        assert os.lseek(number, 0, os.SEEK_CUR) == len(b"the program's"), "nothing was read or written"
        assert os.path.samestat(os.fstat(number), os.stat(path))
    finally:
        os.close(number)


def test_program_file_with_a_sockets_number_is_left_alone(tmp_path: Path) -> None:
    ours, theirs = sockets.pair()
    with file_under(ours.fileno(), tmp_path / "own"):
        with pytest.raises(OSError):
            ours.send(b"x")
        assert ours.receive(10) == b"" and ours.fileno() == -1
        ours.close()
        assert theirs.receive(10) == b"", "the peer sees the end"


def test_program_socket_with_a_sockets_number_is_left_alone() -> None:
    ours, _theirs = sockets.pair()
    number = ours.fileno()
    own, peer = socket.socketpair()
    with own, peer:
        os.dup2(own.fileno(), number)
        peer.send(b"for the program")
        sockets.wait([ours], timeout_s=TIMEOUT_S)
        assert ours.receive(100) == b""
        with pytest.raises(OSError):
            ours.send(b"x")
        ours.close()
        assert os.read(number, 100) == b"for the program"
        os.close(number)
        peer.setblocking(False)
        with pytest.raises(BlockingIOError):
            peer.recv(1)


def test_deleting_a_lost_socket_closes_no_file_of_the_program(tmp_path: Path) -> None:
    ours, _theirs = sockets.pair()
    with file_under(ours.fileno(), tmp_path / "own"):
        del ours


def test_all_bytes_arrive_before_the_end() -> None:
    ours, theirs = sockets.pair()
    assert ours.receive(10) is None
    while theirs.send(bytes(1 << 16)):
        pass
    sent = 0
    theirs.close()
    while data := ours.receive(1 << 16):
        sent += len(data)
    assert sent > 0 and data == b""
    with pytest.raises(OSError):
        ours.send(b"x")


@pytest.mark.parametrize("end", ["_waiting", "_waking"])
def test_closed_waker_ends_the_wait(end: str, tmp_path: Path) -> None:
    waker = sockets.Waker()
    thread = threading.Thread(target=sockets.wait, args=([waker],), kwargs={"timeout_s": TIMEOUT_S})
    thread.start()
    with file_under(getattr(waker, end).fileno(), tmp_path / "own"):
        assert not waker.is_open()
        waker.wake()
        thread.join(TIMEOUT_S / 2)
        assert not thread.is_alive()
        waker.clear()
        waker.close()


def test_wake_is_never_lost_and_never_blocks() -> None:
    waker = sockets.Waker()
    for _ in range(10_000):
        waker.wake()
    sockets.wait([waker], timeout_s=TIMEOUT_S)
    waker.clear()
    assert waker.is_open()
    waker.wake()
    sockets.wait([waker], timeout_s=TIMEOUT_S)
    waker.close()
