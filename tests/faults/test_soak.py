"""Tests that programs have the results of eager code, and a daemon does not grow, while random faults happen."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from support_altered import flip_bit
from support_host import Client, Host

from precompiled.client.daemon_link import daemon_reachable
from precompiled.core.errors import CorruptArtifact
from precompiled.store import eviction

pytestmark = [pytest.mark.fault("soak"), pytest.mark.slow]

INFERRED = ("mlp", "sum", "reduction", "long-name", "gpt2", "resnet")
TRAINED = ("mlp", "sum", "gpt2", "resnet")  # the models that have parameters
MANY = 40  # the fewest rounds for which a slope is meaningful
MIB = 1 << 20


def _kill_worker(host: Host, client: Client, numbers: random.Random) -> None:
    os.kill(numbers.choice(host.status().workers).pid, signal.SIGKILL)


def _pause_worker(host: Host, client: Client, numbers: random.Random) -> None:
    pid = numbers.choice(host.status().workers).pid
    os.kill(pid, signal.SIGSTOP)
    time.sleep(numbers.random())  # the pause is the fault
    os.kill(pid, signal.SIGCONT)


def _kill_daemon(host: Host, client: Client, numbers: random.Random) -> None:
    os.kill(host.status().pid, signal.SIGKILL)


def _kill_client(host: Host, client: Client, numbers: random.Random) -> None:
    client.process.kill()


def _clear(host: Host, client: Client, numbers: random.Random) -> None:
    eviction.clear(host.store)


def _flip(host: Host, client: Client, numbers: random.Random) -> None:
    if path := _file(host, numbers):
        copy = _copy(path)
        flip_bit(copy, numbers.randrange(8 * path.stat().st_size))
        copy.replace(path)


def _truncate(host: Host, client: Client, numbers: random.Random) -> None:
    if path := _file(host, numbers):
        copy = _copy(path)
        os.truncate(copy, numbers.randrange(path.stat().st_size))
        copy.replace(path)


def _copy(path: Path) -> Path:
    """A copy beside the file, to be damaged. Overwriting native code in place would crash the programs that have
    mapped it, as with any shared library.
    """
    return Path(shutil.copy2(path, path.with_suffix(".damaged")))


def _file(host: Host, numbers: random.Random) -> Path | None:
    files = sorted(path for path in host.store.artifacts.rglob("*") if path.is_file() and path.stat().st_size)
    return numbers.choice(files) if files else None


def _garbage(host: Host, client: Client, numbers: random.Random) -> None:
    for _ in range(50):
        with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sock.connect(str(host.runtime_dir / "socket"))
            sock.sendall(numbers.randbytes(numbers.randrange(1, 1000)))


FAULTS = (_kill_worker, _pause_worker, _kill_client, _clear, _flip, _truncate, _garbage)
RARE = (_kill_daemon,)  # each restart begins a new series of measurements


@pytest.mark.timeout(7200)
def test_programs_equal_eager_and_the_daemon_does_not_grow(
    host: Host, tries: Callable[..., int], record_property: Callable[[str, object], None]
) -> None:
    rounds = tries(8, 80, 720)  # about 5 s each
    seed = 5 if rounds < MANY else random.randrange(1 << 32)
    print("seed", seed)  # pytest prints it if the test fails
    numbers = random.Random(seed)
    sizes: dict[int, list[tuple[int, int, int]]] = {}  # maps the pid of a daemon to its descriptors, threads and bytes
    host.start_daemon()
    for number in range(rounds):
        training = bool(numbers.randrange(2))
        client = host.start({"model": numbers.choice(TRAINED if training else INFERRED), "training": training})
        client.wait_for("first-step")
        fault = numbers.choice(RARE if number == rounds // 10 else FAULTS)
        with contextlib.suppress(IndexError):  # no worker has started yet
            fault(host, client, numbers)
        if fault is not _kill_client:
            client.result()  # the program compares each step with eager's
        if not daemon_reachable(host.settings):  # the next client would start it, too
            host.start_daemon()
        _assert_whole(host)
        host.stats()  # waits until the daemon is idle
        daemon = psutil.Process(host.status().pid)
        sizes.setdefault(daemon.pid, []).append((daemon.num_fds(), daemon.num_threads(), daemon.memory_info().rss))
    series = np.array(max(sizes.values(), key=len)[2:], dtype=float)
    growth = {name: _growth(series[:, column]) for column, name in enumerate(("descriptors", "threads", "bytes"))}
    record_property("measured", f"growth per round, and its standard error: {growth}")
    if rounds >= MANY:
        limits = {"descriptors": 0.001, "threads": 0.001, "bytes": MIB / 50}  # per round
        assert all(slope - 3 * error <= limits[name] for name, (slope, error) in growth.items()), growth


def _assert_whole(host: Host) -> None:
    """Check that a reader gets complete artifacts, or the error that makes it quarantine them."""
    for artifact in host.store.all_artifacts():
        with contextlib.suppress(CorruptArtifact, FileNotFoundError):
            assert host.store.read_files(artifact)


def _growth(values: np.ndarray) -> tuple[float, float]:
    """The slope of a line through the values, and its standard error."""
    if len(values) < 4:
        return 0.0, 0.0
    (slope, _), covariance = np.polyfit(np.arange(len(values)), values, 1, cov=True)
    return float(slope), float(np.sqrt(covariance[0, 0]))
