"""Tests of a worker that starts before the first graph is submitted (docs/decisions/0016)."""

from __future__ import annotations

import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support_daemon import DaemonUnderTest, graph, running_daemon, wait_until
from support_host import TIMEOUT_S, Host

from precompiled import wire
from precompiled.client import ask, early_worker
from precompiled.client.connection import DaemonConnection
from precompiled.core import python_path
from precompiled.core.config import Settings
from precompiled.store.artifacts import Store

# The program traces a call of ``a_worker``, which returns once a worker exists, before any graph is submitted.
PROGRAM = """
import sys, time
import torch, precompiled
from precompiled import wire
from precompiled.client import ask, connection, daemon_link
from precompiled.client.process import PROCESS
precompiled.enable()

@torch.compiler.assume_constant_result
def a_worker():
    deadline = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < deadline:
        if daemon_link.daemon_reachable(PROCESS.settings()):
            workers = ask.request(PROCESS.settings(), wire.Status()).workers
            if workers:
                return len(workers)
        time.sleep(0.05)  # between two looks: nothing tells a client of a worker
    return 0

messages = []
expect = connection.DaemonConnection.expect
connection.DaemonConnection.expect = lambda self, message: (messages.append(message), expect(self, message))
compiled = torch.compile(lambda x: x * a_worker())
print(compiled(torch.ones(2)).tolist(), len(messages), flush=True)
precompiled.wait()
"""

# A variant of PROGRAM that waits for a precompiled header in the store, not for a worker.
OF_A_HEADER = PROGRAM.replace(
    "ask.request(PROCESS.settings(), wire.Status()).workers",
    "list(PROCESS.settings().cache_dir.glob('scratch/*/precompiled_headers/*.*ch'))",
)


# A program that imports torch, waits at most some seconds for a worker, and prints how many workers exist.
THAT_IMPORTS_TORCH = """
import sys, time
import precompiled
from precompiled.client import early_worker
early_worker.GPU_FILES = ()
precompiled.enable()
import torch
from precompiled import wire
from precompiled.client import ask
from precompiled.client.process import PROCESS

deadline = time.monotonic() + float(sys.argv[1])
workers = []
while not workers and time.monotonic() < deadline:
    workers = ask.request(PROCESS.settings(), wire.Status()).workers
    time.sleep(0.05)  # between two looks: nothing tells a client of a worker
print(len(workers), "torch._dynamo" in sys.modules)
"""


def run(host: Host, wait_s: float, program: str = PROGRAM) -> str:
    return host.program("-c", program, str(wait_s)).ended()


@pytest.mark.integration
def test_daemon_and_worker_start_while_the_first_graph_is_traced(host: Host) -> None:
    assert run(host, TIMEOUT_S) == "[1.0, 1.0] 1"
    (worker,) = host.status().workers
    assert worker.jobs_done == 1, "it is the one that the graph went to"


@pytest.mark.integration
def test_worker_that_starts_ahead_precompiles_the_header_before_its_first_job(host: Host) -> None:
    shutil.rmtree(host.root / "store" / "scratch", ignore_errors=True)
    assert run(host, TIMEOUT_S, OF_A_HEADER) == "[1.0, 1.0] 1"
    (worker,) = host.status().workers
    assert worker.jobs_done == 1, "the first job waits for a build that has begun"


@pytest.mark.integration
def test_no_worker_starts_ahead_if_the_store_has_artifacts(host: Host) -> None:
    (host.root / "store" / "artifacts" / "something.0").mkdir(parents=True, mode=0o700)
    (host.root / "store").chmod(0o700)
    (host.root / "store" / "artifacts").chmod(0o700)
    assert run(host, 0.0) == "[0.0, 0.0] 0"


@pytest.mark.integration
def test_worker_starts_when_a_program_has_imported_torch(host: Host) -> None:
    host.start_daemon()
    assert host.program("-c", THAT_IMPORTS_TORCH, str(TIMEOUT_S), forked=False).ended() == "1 False"
    assert run(host, TIMEOUT_S) == "[1.0, 1.0] 1"
    assert [worker.jobs_done for worker in host.status().workers] == [1], "it is the one that the graph went to"


@pytest.mark.integration
def test_doctor_starts_no_worker(host: Host) -> None:
    host.start_daemon()
    host.answer(python_path.with_hook(host.environment()), "doctor", status=None)
    assert host.status().workers == []


def test_a_worker_is_requested_only_if_a_daemon_on_this_cpu_will_compile_all_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[str] = []
    gpu = tmp_path / "gpu"
    monkeypatch.setattr(early_worker, "GPU_FILES", (str(gpu),))
    monkeypatch.setattr(early_worker, "message", lambda settings, device, tracing: requested.append(settings.mode))
    monkeypatch.setattr(early_worker, "_send", lambda settings, expected: None)

    def request(settings: Settings) -> bool:
        requested.clear()
        early_worker.request(settings)
        return bool(requested)

    daemon = DaemonUnderTest(tmp_path)
    assert not request(daemon.settings), "no daemon runs"
    with running_daemon(tmp_path) as daemon:
        assert request(daemon.settings)
        assert request(replace(daemon.settings, mode="wait"))
        assert not request(replace(daemon.settings, mode="lookup"))
        assert not request(replace(daemon.settings, remote=f"file://{tmp_path}/remote"))
        gpu.touch()
        assert request(daemon.settings) == (torch.version.cuda is None and torch.version.hip is None)
        monkeypatch.setattr(torch.version, "cuda", "12.6")
        assert not request(daemon.settings)
        gpu.unlink()
        assert request(daemon.settings)
        artifact = Store(daemon.settings.cache_dir).artifacts / "something.0"
        artifact.mkdir(parents=True, mode=0o700)
        assert not request(daemon.settings)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_waits_for_the_request_and_keeps_no_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sending, may_end = threading.Event(), threading.Event()
    order: list[str] = []

    def send_now(settings: Settings, messages: object) -> None:
        sending.set()
        may_end.wait(TIMEOUT_S)
        order.append("sent")

    monkeypatch.setattr(ask, "send_now", send_now)
    thread = threading.Thread(target=early_worker._send, args=(DaemonUnderTest(tmp_path).settings, None))
    thread.start()
    assert sending.wait(TIMEOUT_S)
    threading.Timer(0.1, may_end.set).start()
    child = os.fork()
    if child == 0:
        os._exit(0 if order == ["sent"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()


def test_expectation_waits_for_a_starting_daemon_and_a_submit_replaces_it(tmp_path: Path) -> None:
    daemon = DaemonUnderTest(tmp_path)
    first, second = DaemonConnection(daemon.settings), DaemonConnection(daemon.settings)
    try:
        expected = wire.Expect(daemon.environment(), "cpu")
        first.expect(expected)
        daemon.start()
        (worker,) = wait_until(lambda: [w for w in daemon.status().workers if w.state == "idle"])
        assert daemon.stats().submitted == 0
        second.submit(daemon.submit(), graph(), lambda reply: None)
        second.expect(expected)
        assert second.flush(TIMEOUT_S)
        wait_until(lambda: daemon.stats().compiled == 1)
        assert [w.pid for w in daemon.status().workers] == [worker.pid]
    finally:
        first.close()
        second.close()
        daemon.cleanup()


def test_invalid_interpreter_or_device_is_ignored(tmp_path: Path) -> None:
    with running_daemon(tmp_path) as daemon:
        connection = DaemonConnection(daemon.settings)
        try:
            connection.expect(wire.Expect(daemon.environment(), "cuda:GPU-absent"))
            connection.expect(wire.Expect(wire.Interpreter("python", "/", "3", "2", "", {}), "cpu"))
            connection.submit(daemon.submit(), graph(), lambda reply: None)
            wait_until(lambda: daemon.stats().compiled == 1)
        finally:
            connection.close()
