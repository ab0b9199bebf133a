"""Tests of bad input to a real daemon: it replies with a typed error if it can, and keeps running."""

from __future__ import annotations

import os
import random
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from precompiled.service.server import Lock, check_submit, prepare_runtime_dir
from support_daemon import TIMEOUT_S, DaemonUnderTest, graph, raw_client, running_daemon, wait_until

from precompiled import wire
from precompiled.client.daemon_link import daemon_reachable, listener
from precompiled.core.config import Settings
from precompiled.core.errors import WireError

MAX_GRAPH = 1 << 20


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    with running_daemon(tmp_path_factory.mktemp("d"), max_graph_bytes=MAX_GRAPH) as running:
        yield running


@pytest.fixture(autouse=True)
def lives(daemon: DaemonUnderTest) -> Iterator[None]:
    """Check after every test that the same daemon still compiles."""
    yield
    with raw_client(daemon.settings) as client:
        message = daemon.submit()
        client.submit(message, graph())
        assert client.ended(message.id).state == "published"
    assert daemon.status().pid == daemon.pid


@pytest.mark.fault("frames")
@pytest.mark.reason("protocol-version")
def test_the_reply_to_a_wrong_version_says_what_to_do(daemon: DaemonUnderTest) -> None:
    with raw_client(daemon.settings) as client:
        client.send(b"precompiled/999", b"whatever that version says", b"blob", b"more")
        reply = client.receive()
    assert (reply.code, "restart" in reply.action) == ("protocol-version", True)


@pytest.mark.fault("frames")
@pytest.mark.reason("bad-message")
@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"HTTP/1.1 GET /"],
        [wire.PREAMBLE],
        [wire.PREAMBLE, b""],
        [wire.PREAMBLE, b"\xc1"],
        [wire.PREAMBLE, b"{}"],
        [wire.PREAMBLE, msgspec.msgpack.encode({"type": "unknown"})],
        [wire.PREAMBLE, msgspec.msgpack.encode({"type": "submit"})],
        [wire.PREAMBLE, msgspec.msgpack.encode({"type": "submit", "id": 5})],
        [wire.PREAMBLE, msgspec.msgpack.encode([1, 2, 3])],
        [wire.PREAMBLE, b"\x91" * 100_000],  # nested lists
        [wire.PREAMBLE, wire.encode(wire.Status()), b"a blob that does not belong there"],
        [wire.PREAMBLE, wire.encode(wire.Accepted("i", "k", "queued"))],  # a message that only the daemon sends
        [wire.PREAMBLE, wire.encode(wire.Status()), b"", b"", b""],
        [wire.PREAMBLE] * 1000,
    ],
    ids=lambda frames: f"{len(frames)}-{len(frames[-1])}",
)
def test_malformed_messages_are_rejected(daemon: DaemonUnderTest, frames: list[bytes]) -> None:
    with raw_client(daemon.settings) as client:
        client.send(*frames)
        assert client.receive().code == "bad-message"


@pytest.mark.fault("frames")
def test_a_message_over_its_limit_is_rejected(daemon: DaemonUnderTest) -> None:
    with raw_client(daemon.settings) as client:
        client.send(wire.PREAMBLE, b"x" * (wire.MAX_MESSAGE_BYTES + 1))
        assert client.receive().code == "too-large"


@pytest.mark.fault("frames")
@pytest.mark.reason("too-large")
def test_a_graph_over_its_limit_is_rejected(daemon: DaemonUnderTest) -> None:
    with raw_client(daemon.settings) as client:
        message = daemon.submit()
        client.submit(message, b"x" * (MAX_GRAPH + 1))
        reply = client.receive()
        assert (reply.code, reply.id) == ("too-large", message.id)


@pytest.mark.fault("frames")
def test_a_frame_over_the_limit_ends_only_its_own_connection(daemon: DaemonUnderTest) -> None:
    with raw_client(daemon.settings) as good, raw_client(daemon.settings) as bad:
        bad.submit(daemon.submit(), b"x" * (MAX_GRAPH + 2 * wire.MAX_MESSAGE_BYTES))
        message = daemon.submit()
        good.submit(message, graph())
        assert good.ended(message.id).state == "published"


@pytest.mark.fault("frames")
def test_a_submit_without_its_graph_is_rejected(daemon: DaemonUnderTest) -> None:
    with raw_client(daemon.settings) as client:
        message = daemon.submit()
        client.send(wire.PREAMBLE, wire.encode(message))
        assert client.receive().code == "bad-message"
        client.submit(message, b"")
        assert client.receive().code == "bad-message"


@pytest.mark.fault("frames")
def test_random_bytes_do_not_stop_the_daemon(daemon: DaemonUnderTest, tries: Callable[[int, int], int]) -> None:
    generator = random.Random(4)
    for _ in range(tries(20, 5000)):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.connect(str(daemon.runtime_dir / "socket"))
            try:
                sock.sendall(generator.randbytes(generator.randrange(1, 5000)))
            except OSError:
                pass  # the daemon has closed the connection


@pytest.mark.fault("frames")
def test_random_frames_are_rejected(daemon: DaemonUnderTest) -> None:
    generator = random.Random(5)
    with raw_client(daemon.settings) as client:
        for _ in range(200):
            client.send(wire.PREAMBLE, *(generator.randbytes(generator.randrange(200)) for _ in range(2)))
        for _ in range(200):
            assert client.receive().code == "bad-message"


@pytest.mark.fault("frames")
def test_messages_with_a_flipped_bit_do_not_stop_the_daemon(
    daemon: DaemonUnderTest, tries: Callable[[int, int], int]
) -> None:
    generator = random.Random(6)
    with raw_client(daemon.settings) as client:
        for _ in range(tries(200, 5000)):
            data = bytearray(wire.encode(daemon.submit(key="flipped", waiting=False)))
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
            client.send(wire.PREAMBLE, bytes(data), graph("exists"))
            client.receive()  # the flipped bit decides between acceptance and rejection, so any reply is right
        wait_until(lambda: daemon.status().queue_depth == 0)


@pytest.mark.fault("load")
def test_a_peer_that_does_not_read_does_not_block_others(daemon: DaemonUnderTest) -> None:
    with raw_client(daemon.settings) as deaf, raw_client(daemon.settings) as client:
        for _ in range(5000):
            deaf.send(wire.PREAMBLE, wire.encode(wire.Status()))
        message = daemon.submit()
        client.submit(message, graph())
        assert client.ended(message.id).state == "published"


@pytest.mark.reason("not-permitted")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs another uid")
def test_a_user_daemon_serves_only_its_own_user(daemon: DaemonUnderTest) -> None:
    # The socket's mode would already refuse other users. The test opens the mode, so that only the check of the peer's
    # uid can refuse another user.
    directories = [daemon.runtime_dir, *daemon.runtime_dir.parents]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in directories if path != Path("/")}
    (daemon.runtime_dir / "socket").chmod(0o666)
    for path, mode in modes.items():
        path.chmod(mode | 0o055)
    script = (
        "import os, sys, zmq\n"
        # Popen's argument ``user`` does not help, because user 12345 cannot execute this Python.
        "os.setgroups([]); os.setgid(12345); os.setuid(12345)\n"
        "s = zmq.Context().socket(zmq.DEALER); s.connect('ipc://' + sys.argv[1])\n"
        "s.send_multipart([bytes.fromhex(a) for a in sys.argv[2:]])\n"
        "assert s.poll(20000); sys.stdout.buffer.write(s.recv_multipart()[1])\n"
    )
    try:
        for message in (wire.Status(), wire.Stop()):
            done = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    script,
                    str(daemon.runtime_dir / "socket"),
                    wire.PREAMBLE.hex(),
                    wire.encode(message).hex(),
                ],
                capture_output=True,
                timeout=TIMEOUT_S,
                cwd="/",
                check=True,
            )
            reply = wire.decode(done.stdout, wire.DaemonMessage)
            assert isinstance(reply, wire.Rejected) and reply.code == "not-permitted"
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
        (daemon.runtime_dir / "socket").chmod(0o600)


def test_only_the_user_can_access_directory_socket_and_lock(daemon: DaemonUnderTest) -> None:
    assert stat.S_IMODE(daemon.runtime_dir.stat().st_mode) == 0o700
    assert stat.S_IMODE((daemon.runtime_dir / "socket").stat().st_mode) == 0o600
    assert stat.S_IMODE((daemon.runtime_dir / "lock").stat().st_mode) == 0o600


def test_daemon_reachable_can_be_called_often(daemon: DaemonUnderTest) -> None:
    for _ in range(200):
        assert daemon_reachable(daemon.settings)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another uid")
def test_another_users_daemon_is_not_used(tmp_path: Path) -> None:
    """If two users can write to a runtime directory, one user's client would send graphs, weights and environment
    variables to the other user's daemon.
    """
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "socket"))
        os.seteuid(12345)
        try:
            sock.listen()  # the kernel records the effective uid of the process that calls listen
        finally:
            os.seteuid(0)
        settings = Settings(runtime_dir=tmp_path)
        assert listener(settings) == (os.getpid(), 12345, os.getegid()) and not daemon_reachable(settings)
        os.seteuid(0)
        sock.listen()
        assert daemon_reachable(settings)


@pytest.mark.fault("frames")
@pytest.mark.parametrize(
    "change",
    [
        {"key": "../../etc/passwd"},
        {"key": ".hidden"},
        {"key": ""},
        {"key": "k" * 201},
        {"id": ""},
        {"id": "i" * 1000},
        {"store": "relative"},
        {"store": "/nul\0byte"},
        {"name": "n" * 5000},
    ],
    ids=lambda change: str(change)[:30],
)
def test_invalid_fields_of_a_submit_are_refused(daemon: DaemonUnderTest, change: dict[str, object]) -> None:
    message = msgspec.structs.replace(daemon.submit(), **change)
    with pytest.raises(WireError):
        check_submit(message, b"graph", MAX_GRAPH)


@pytest.mark.fault("start-races")
def test_the_lock_is_exclusive_and_detects_its_replacement(tmp_path: Path) -> None:
    first, second = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    assert first.acquire() and not second.acquire() and first.is_ours()
    (tmp_path / "lock").unlink()
    assert not first.is_ours()
    assert second.acquire()
    first.release()
    assert second.is_ours()
    second.release()


@pytest.mark.reason("runtime-dir-untrusted")
def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    from precompiled.core.errors import DaemonError

    path = tmp_path / "r"
    path.mkdir()
    path.chmod(0o777)
    (path / "lock").touch()
    with pytest.raises(DaemonError) as caught:
        prepare_runtime_dir(path, system=False)
    assert caught.value.code == "runtime-dir-untrusted"
    (path / "lock").unlink()
    prepare_runtime_dir(path, system=False)  # an empty directory is safe
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.reason("runtime-dir-untrusted")
def test_a_directory_with_other_files_is_refused_and_keeps_its_mode(tmp_path: Path) -> None:
    """A daemon must not make a directory private that holds other files, because other users may read these files. A
    directory behind a link must be refused, too.
    """
    from precompiled.core.errors import DaemonError

    public = tmp_path / "public"
    public.mkdir(mode=0o755)
    (public / "page").touch()
    (tmp_path / "r").symlink_to(public)
    with pytest.raises(DaemonError) as caught:
        prepare_runtime_dir(tmp_path / "r", system=False)
    assert caught.value.code == "runtime-dir-untrusted" and "other files" in caught.value.message
    assert stat.S_IMODE(public.stat().st_mode) == 0o755


@pytest.mark.reason("runtime-dir-untrusted")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a link to another user")
def test_another_users_link_is_refused(tmp_path: Path) -> None:
    from precompiled.core.errors import DaemonError

    (tmp_path / "empty").mkdir(mode=0o755)
    (tmp_path / "r").symlink_to(tmp_path / "empty")
    os.chown(tmp_path / "r", 12345, 12345, follow_symlinks=False)
    with pytest.raises(DaemonError) as caught:
        prepare_runtime_dir(tmp_path / "r", system=False)
    assert caught.value.code == "runtime-dir-untrusted"
