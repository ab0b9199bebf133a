"""Tests that one user cannot stop or slow the daemon for others. Each attack once blocked or ended a real daemon.

Most attacks need only one user, because a blocked daemon blocks all its users. Other files test the shares of users:
test_connections (connections, memory, time) and test_shares (queue, slots).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support_daemon import TIMEOUT_S, DaemonUnderTest, RawClient, graph, raw_client, running_daemon

from precompiled import wire

READY = wire.frame(wire.Ready(1, "3", "2", "0"))
FINISHED = wire.frame(wire.Finished("another", "another", "published", 1.0))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    with running_daemon(tmp_path_factory.mktemp("d")) as running:
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


@contextlib.contextmanager
def write_lease(path: Path) -> Iterator[None]:
    """Hold a lease on ``path``: a process that opens or executes the file blocks for up to 45 s (lease-break-time)."""
    old = signal.signal(signal.SIGIO, signal.SIG_IGN)
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    except OSError as error:
        pytest.skip(f"this file system has no leases: {error}")
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, old)


@pytest.mark.fault("hangs")
def test_an_interpreter_whose_exec_blocks_delays_only_its_own_job(daemon: DaemonUnderTest, tmp_path: Path) -> None:
    leased = tmp_path / "python"
    shutil.copy(daemon.interpreter, leased)
    environment = wire.Interpreter(str(leased), "/", "3.0", "2.0", "", {})
    with raw_client(daemon.settings) as client:
        message = daemon.submit(environment=environment)
        with write_lease(leased):
            client.submit(message, graph())
            client.receive()
            workers = daemon.status().workers
            assert "starting" in [worker.state for worker in workers], "the daemon answers meanwhile"
        assert client.ended(message.id).state == "published", "the job runs once the lease is released"


@pytest.mark.fault("hangs")
@pytest.mark.reason("cannot-start")
def test_a_fifo_as_interpreter_is_rejected(daemon: DaemonUnderTest, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "python", 0o755)
    environment = wire.Interpreter(str(tmp_path / "python"), "/", "3.0", "2.0", "", {})
    with raw_client(daemon.settings) as client:
        message = daemon.submit(environment=environment)
        client.submit(message, graph())
        assert "cannot-start" in client.ended(message.id).message


@pytest.mark.fault("frames")
def test_routing_ids_chosen_by_peers_are_ignored(daemon: DaemonUnderTest) -> None:
    """A peer may choose the routing ids that libzmq would assign next. While the daemon used libzmq, such a choice
    ended the daemon.
    """
    chosen = [b"\0" + (0x6B8B4567 + number).to_bytes(4, "big") for number in range(60)]
    clients = [RawClient(daemon.settings, identity) for identity in [*chosen, b"same", b"same"]]
    try:
        for client in clients:
            client.send(wire.PREAMBLE, wire.encode(wire.Status()))
        for client in clients:
            assert client.receive().pid == daemon.pid
        for _ in range(70):
            daemon.status()
    finally:
        for client in clients:
            client.close()


@pytest.mark.fault("load")
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit (util-linux)")
def test_more_clients_than_descriptors_do_not_stop_the_daemon(tmp_path: Path) -> None:
    """The daemon has only 128 descriptors. It closes silent connections, so that it can still serve new clients and
    start workers.
    """
    small = DaemonUnderTest(tmp_path, prefix=["prlimit", "--nofile=128:128"])
    silent = []
    try:
        small.start()
        for _ in range(200):
            sock = socket.socket(socket.AF_UNIX)
            sock.settimeout(TIMEOUT_S)
            sock.connect(str(small.runtime_dir / "socket"))
            silent.append(sock)
        assert small.status().pid == small.pid
        with raw_client(small.settings) as client:
            message = small.submit()
            client.submit(message, graph())
            assert client.ended(message.id).state == "published"
        assert small.stop() == 0
    finally:
        for sock in silent:
            sock.close()
        small.cleanup()


@pytest.mark.fault("frames")
@pytest.mark.reason("protocol")
@pytest.mark.parametrize(
    ("said", "why"),
    [(READY, "Ready twice"), (READY * 2000, "messages at once"), (FINISHED * 3, "did not have|protocol")],
    ids=["one", "many", "finished"],
)
def test_a_worker_that_sends_unexpected_messages_is_ended(daemon: DaemonUnderTest, said: bytes, why: str) -> None:
    before = len(daemon.log())
    with raw_client(daemon.settings) as client:
        message = daemon.submit()
        client.submit(message, graph("say", hex=said.hex()))
        reply = client.ended(message.id)
    assert reply.code == "key-quarantined"
    assert any(part in reply.message for part in why.split("|"))
    assert len(daemon.log()) - before < 5000, "only a few log lines per death"


@pytest.mark.fault("frames")
@pytest.mark.reason("bad-message")
@pytest.mark.parametrize("kind", [wire.GiveUp, wire.Retry])
def test_key_prefixes_in_a_message_are_limited(daemon: DaemonUnderTest, kind: type) -> None:
    with raw_client(daemon.settings) as client:
        for keys, code in ((["a"] * 256, None), (["a"] * 257, "bad-message"), (["a" * 300], "bad-message")):
            client.send(wire.PREAMBLE, wire.encode(kind(keys)))
            assert getattr(client.receive(), "code", None) == code


@pytest.mark.fault("load")
def test_a_flood_does_not_keep_the_daemon_from_stopping(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as busy, raw_client(busy.settings) as client:
        large = wire.encode(wire.GiveUp([f"{number:02x}" for number in range(256)] * 1000))
        for _ in range(300):
            client.send(wire.PREAMBLE, large)
        assert client.receive().code == "bad-message"
        assert busy.stop() == 0


@pytest.mark.fault("frames")
def test_text_from_peers_cannot_forge_log_lines(daemon: DaemonUnderTest) -> None:
    forged = "\n2026-01-01 00:00:00,000 INFO precompiled.daemon: FORGED \x1b[2J"
    with raw_client(daemon.settings) as client:
        for message in (
            msgspec.structs.replace(daemon.submit(), id="x" + forged),
            daemon.submit(environment=wire.Interpreter("/nowhere" + forged, "/", "3", "2", "", {})),
            daemon.submit(device="cpu" + forged),
            daemon.submit(name="n" + forged),
        ):
            client.submit(message, graph("fail"))
            client.receive_until(lambda reply: isinstance(reply, wire.Rejected))
    lines = daemon.log().split("\n")
    assert not [line for line in lines if line.startswith("2026-01-01")] and "\x1b" not in daemon.log()
    assert any("FORGED" in line for line in lines), "the text is logged, escaped"


WORKER = """\
#!/usr/bin/python3
import os, sys
fd = int(sys.argv[sys.argv.index("--control-fd") + 1])
os.write(fd, bytes.fromhex("{ready}"))
os.read(fd, 1 << 16)
os.write(fd, bytes.fromhex("{finished}"))
os.read(fd, 1 << 16)
"""
# This attacker runs under another uid: it takes the only slot, fills the queue, and sends requests in a loop.
HOSTILE = """\
import os, sys, zmq
os.setgroups([]); os.setgid(54322); os.setuid(54322)
context, frames = zmq.Context(), [bytes.fromhex(a) for a in sys.argv[2:]]
sockets = [context.socket(zmq.DEALER) for _ in range(100)]
for s in sockets:
    s.connect("ipc://" + sys.argv[1])
for number in range(600):
    key = b"%06d" % number
    sockets[0].send_multipart([frames[0], frames[1].replace(b"000000", key), b"graph"])
for number in range(600):
    sockets[0].recv_multipart()
print("here", flush=True)
while True:
    for s in sockets:
        try:
            s.send_multipart([frames[0], frames[2]], zmq.NOBLOCK)
        except zmq.Again:
            pass
"""
STORM = """\
import os, socket, sys
os.setgroups([]); os.setgid(54320); os.setuid(54320)
while True:
    s = socket.socket(socket.AF_UNIX)
    try:
        s.connect(sys.argv[1])
    except PermissionError as error:
        print(error, flush=True)
        break
    finally:
        s.close()
sys.stdin.read()
"""
ASK = """\
import os, sys, zmq
os.setgroups([]); os.setgid(54321); os.setuid(54321)
s = zmq.Context().socket(zmq.DEALER); s.connect("ipc://" + sys.argv[1])
s.send_multipart([bytes.fromhex(a) for a in sys.argv[3:]])
for _ in range(int(sys.argv[2])):
    assert s.poll(60000), "no reply"
    print(s.recv_multipart()[1].hex(), flush=True)
"""


two_users = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/usr/bin/python3", os.X_OK),
    reason="ATTACKS OF ANOTHER USER ARE NOT TRIED: that needs root, for two uids, and /usr/bin/python3",
)


@pytest.mark.fault("load")
@pytest.mark.integration
@two_users
def test_a_user_who_fills_queue_and_slot_and_floods_does_not_block_another_user() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        directory = Path(name)
        directory.chmod(0o755)
        system = DaemonUnderTest(directory, {"max_queue": 600, "max_queue_per_uid": 600, "workers": 1})
        never_ready, good = directory / "never-ready", directory / "good"
        never_ready.write_text("#!/bin/sh\nexec sleep 1000\n")
        good.write_text(
            WORKER.format(ready=READY.hex(), finished=wire.frame(wire.Finished("mine", "mine", "published", 1.0)).hex())
        )
        for path in (never_ready, good):
            path.chmod(0o755)
        path = str(system.runtime_dir / "socket")
        waits = wire.Interpreter(str(never_ready), "/", "3", "2", "", {})
        theirs = wire.Submit("id000000", "key000000", "/s", waits, "cpu")
        mine = wire.Submit("mine", "mine", "/s", wire.Interpreter(str(good), "/", "3", "2", "", {}), "cpu")
        hostile = None
        try:
            system.start("--system")
            hostile = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    HOSTILE,
                    path,
                    wire.PREAMBLE.hex(),
                    wire.encode(theirs).hex(),
                    wire.encode(wire.Status()).hex(),
                ],
                stdout=subprocess.PIPE,
            )
            assert hostile.stdout is not None and hostile.stdout.readline()
            assert system.status().queue_depth == 600, "the queue is full"
            done = subprocess.run(
                [sys.executable, "-c", ASK, path, "2", wire.PREAMBLE.hex(), wire.encode(mine).hex(), b"graph".hex()],
                check=True,
                capture_output=True,
                timeout=2 * TIMEOUT_S,
            )
            said = [wire.decode(bytes.fromhex(line), wire.DaemonMessage) for line in done.stdout.decode().split()]
            assert [getattr(reply, "state", reply) for reply in said] == ["queued", "published"]
            assert system.status().queue_depth >= 599 and hostile.poll() is None, "the attack still runs"
            assert system.stop() == 0
        finally:
            if hostile is not None:
                hostile.kill()
                hostile.communicate()
            system.cleanup()


@pytest.mark.fault("load")
@two_users
def test_a_user_who_connects_in_a_loop_is_denied_the_socket_and_another_is_served() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        system = DaemonUnderTest(Path(name))
        path = str(system.runtime_dir / "socket")
        storm = None
        try:
            system.start("--system")
            storm = subprocess.Popen(
                [sys.executable, "-c", STORM, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert storm.stdout is not None and "Permission denied" in storm.stdout.readline()
            ask = [sys.executable, "-c", ASK, path, "1", wire.PREAMBLE.hex(), wire.encode(wire.Status()).hex()]
            done = subprocess.run(ask, check=True, capture_output=True, timeout=2 * TIMEOUT_S)
            reply = wire.decode(bytes.fromhex(done.stdout.decode()), wire.DaemonMessage)
            assert isinstance(reply, wire.StatusReply) and reply.pid == system.pid
            assert "socket now denies" in system.log()
            assert system.stop() == 0
        finally:
            if storm is not None:
                storm.communicate()
            system.cleanup()
