"""Tests of a worker that starts before the first graph is submitted (docs/decisions/0016)."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from support_daemon import DaemonUnderTest, graph, running_daemon, wait_until
from support_host import TIMEOUT_S, Host

from precompiled import wire
from precompiled.client import early_worker
from precompiled.client.connection import DaemonConnection
from precompiled.core import python_path

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
def test_no_worker_starts_at_an_import_of_torch_if_nothing_will_be_compiled(host: Host) -> None:
    host.start_daemon()
    hooked = python_path.with_hook(host.environment())
    for mode in ("lookup", "off"):
        host.program("-c", "import torch", env={**hooked, "PRECOMPILED_MODE": mode}, forked=False).ended()
    host.answer(hooked, "doctor", status=None)
    assert host.status().workers == []
    (host.root / "store" / "artifacts" / "something.0").mkdir(parents=True, mode=0o700)
    host.program("-c", "import torch", env=hooked, forked=False).ended()
    assert host.status().workers == []


def test_no_worker_is_requested_at_the_import_of_torch_on_a_host_with_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "driver"
    monkeypatch.setattr(early_worker, "GPU_DRIVERS", (str(driver),))
    with running_daemon(tmp_path) as daemon:
        driver.touch()
        early_worker.request_at_import(daemon.settings)
        assert not [thread for thread in threading.enumerate() if thread.name == "precompiled-request"]
        driver.unlink()
        early_worker.request_at_import(daemon.settings)
        (worker,) = wait_until(lambda: daemon.status().workers)
        assert worker.device == "cpu"


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
