"""Tests that a lack of memory, in the daemon or in a worker, leads to a reply that names the cause, and that the daemon
serves the next client.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support_daemon import TIMEOUT_S, DaemonUnderTest, graph, raw_client, running_daemon, wait_until
from support_peers import connected

from precompiled import wire
from precompiled.core import zmtp

pytestmark = pytest.mark.fault("memory")
MIB = 1 << 20


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    with running_daemon(tmp_path_factory.mktemp("d")) as running:
        yield running


def compiles(daemon: DaemonUnderTest, work: bytes = b"", **values: object) -> object:
    with raw_client(daemon.settings) as client:
        message = daemon.submit(**values)  # type: ignore[arg-type]
        client.submit(message, work or graph())
        return client.ended(message.id)


@contextlib.contextmanager
def limited(pid: int, room: int) -> Iterator[None]:
    """Let the process take ``room`` more bytes of address space than now (`ulimit -v`)."""
    now = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _soft, hard = before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (now + room, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


def exchange(daemon: DaemonUnderTest, message: bytes, blob: bytes) -> object:
    """Send one message, and return the first reply; None if the daemon closes the connection."""
    with connected(daemon.runtime_dir) as peer:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.sock.sendall(zmtp.encode([wire.PREAMBLE, message, blob]))
        return peer.receive()


@pytest.mark.reason("no-memory")
def test_daemon_without_memory_for_messages_and_graphs_serves_the_next_client(
    daemon: DaemonUnderTest, tries: Callable[[int, int], int]
) -> None:
    generator = random.Random(7)
    large = wire.encode(daemon.submit(base=[f"/{number}" for number in range(130_000)]))
    for number in range(tries(2, 60)):
        room = generator.randrange(20, 180) if number else 20
        with limited(daemon.pid, room * MIB):
            reply = exchange(daemon, large, graph())
            assert reply is None or getattr(reply, "code", "") == "bad-message", (room, reply)
            message = daemon.submit()
            reply = exchange(daemon, wire.encode(message), graph() + b" " * (40 * MIB))
            assert reply is None or isinstance(reply, wire.Accepted), (room, reply)
            assert getattr(compiles(daemon), "state", "") == "published", room
    wait_until(lambda: daemon.status().queue_depth == 0)
    assert daemon.status().pid == daemon.pid and "Traceback" not in daemon.log()
    assert "no-memory" in daemon.log()


# msgspec's Encoder.encode ended such a process with SIGSEGV.
WITHOUT_MEMORY = """\
import os, resource
from precompiled import wire
from precompiled.core.errors import WireError
from precompiled.farm import messages
interpreter = wire.Interpreter("/python", "/", "3", "2", "", {})
submit = wire.encode(wire.Submit("i", "k", "/s", interpreter, "cpu", base=[f"/{n}" for n in range(130_000)]))
job = wire.Job("i", "k", "/s", "cpu", b"x" * (40 << 20), 1, 1.0)
filled = [bytes(1000) for _ in range(20_000)]  # takes what was freed
now = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 20), now + (1 << 20)))
try:
    wire.decode(submit, wire.ClientMessage)
except WireError as error:
    print(error.message)
for encode, message in ((wire.frame, job), (wire.encode, job), (wire.encode, messages.Request(job))):
    try:
        encode(message)
    except MemoryError:
        print("MemoryError")
"""


def test_without_memory_a_decode_raises_wire_error_and_an_encode_memory_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MEMORY], check=True, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    decoded, *encoded = done.stdout.splitlines()
    assert decoded.startswith("there is no memory to decode a message of 9") and encoded == ["MemoryError"] * 3, done


def test_worker_without_memory_for_its_graph_says_so(daemon: DaemonUnderTest, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nulimit -v 90000\nexec {daemon.interpreter} "$@"\n')
    script.chmod(0o755)
    environment = wire.Interpreter(str(script), "/", "3.0", "2.0", "", {})
    reply = compiles(daemon, graph() + b" " * (60 * MIB), environment=environment)
    assert isinstance(reply, wire.Rejected) and reply.code == "key-quarantined"
    assert "this worker has no memory for a graph of" in reply.message
    reply = compiles(daemon, graph("hog", bytes=100 * MIB), environment=environment)
    assert isinstance(reply, wire.Rejected) and reply.code == "compile-failed" and "MemoryError" in reply.message
    assert getattr(compiles(daemon, environment=environment), "state", "") == "published"
    assert daemon.status().pid == daemon.pid


# ---------------------------------------------------------------- the kernel's OOM killer


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory cgroup of 200 MiB."""
    v1 = Path("/sys/fs/cgroup/memory")
    path = (v1 if v1.is_dir() else Path("/sys/fs/cgroup")) / f"pc-test-{os.getpid()}"
    limit = path / ("memory.limit_in_bytes" if v1.is_dir() else "memory.max")
    try:
        path.mkdir()
        limit.write_text(str(200 * MIB))
    except OSError as error:
        with contextlib.suppress(OSError):
            path.rmdir()
        pytest.skip(f"THE OOM KILLER IS NOT TRIED: that needs root and a memory cgroup: {error}")
    yield path
    wait_until(lambda: not (path / "cgroup.procs").read_text())
    path.rmdir()


def test_worker_that_the_oom_killer_ends_is_named_and_the_daemon_survives(
    group: Path, tmp_path: Path, tries: Callable[[int, int], int]
) -> None:
    daemon = DaemonUnderTest(tmp_path, prefix=["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"])
    try:
        daemon.start()
        for _ in range(tries(1, 25)):
            reply = compiles(daemon, graph("hog", bytes=400 * MIB))
            assert isinstance(reply, wire.Rejected) and reply.code == "key-quarantined"
            assert "killed by SIGKILL (by the kernel for memory, or by hand)" in reply.message
            assert getattr(compiles(daemon), "state", "") == "published"
        assert daemon.status().pid == daemon.pid
    finally:
        daemon.cleanup()
