"""Tests of killed daemons and workers: programs are unaffected, and reports name the loss."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from support_host import TIMEOUT_S, Host

from precompiled.client import start

pytestmark = pytest.mark.integration

MLP = {"model": "mlp", "training": True}


def stepping(host: Host) -> tuple[dict[str, object], Path]:
    stop = host.root / "stop-stepping"
    return {**MLP, "steps_until": str(stop)}, stop


def wait_for_worker(host: Host, state: str) -> int:
    """Return the pid of a worker once it is in ``state``. The test's time limit bounds the wait."""
    while True:
        for worker in host.status().workers:
            if worker.state == state:
                return worker.pid


@pytest.mark.fault("daemon-dies")
def test_next_daemon_gets_the_graphs_of_a_killed_one(host: Host) -> None:
    daemon = host.start_daemon()
    spec, stop = stepping(host)
    # Without autostart, this test decides when a daemon runs again.
    client = host.start(spec, {"PRECOMPILED_AUTOSTART": "0"})
    client.wait_for("first-step")
    workers = psutil.Process(daemon).children(recursive=True)
    os.kill(daemon, signal.SIGKILL)
    psutil.wait_procs([*workers, psutil.Process(daemon)] if psutil.pid_exists(daemon) else workers, TIMEOUT_S)
    assert not any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)
    assert client.process.poll() is None, client.text()
    assert host.start_daemon() != daemon
    stop.touch()
    result = client.result()
    assert {(graph["state"], graph["source"]) for graph in result["reports"]} == {("compiled", "swap")}
    assert result["compiles"] == 0


@pytest.mark.fault("daemon-dies")
def test_client_restarts_its_killed_daemon(host: Host) -> None:
    daemon = host.start_daemon()
    client = host.start(MLP)
    client.wait_for("first-step")
    os.kill(daemon, signal.SIGKILL)
    result = client.result()
    assert {graph["state"] for graph in result["reports"]} == {"compiled"}
    assert host.status().pid != daemon


@pytest.mark.fault("worker-dies")
def test_killed_worker_is_replaced_and_its_job_published(host: Host) -> None:
    host.start_daemon()
    client = host.start(MLP)
    client.wait_for("first-step")
    os.kill(wait_for_worker(host, "busy"), signal.SIGKILL)
    result = client.result()
    assert {(graph["state"], graph["source"]) for graph in result["reports"]} == {("compiled", "swap")}
    stats = host.stats()
    assert (stats.retried, stats.failed) == (1, 0)
    assert stats.compiled == len(result["reports"])


@pytest.mark.fault("daemon-dies")
def test_without_any_daemon_it_is_plain_torch_with_one_warning(host: Host) -> None:
    """Not even root can create a directory below /proc or below a file. The last path is too long for a socket."""
    (host.root / "file").touch()
    for env in (
        {"PRECOMPILED_CACHE_DIR": "/proc/none/store", "PRECOMPILED_RUNTIME_DIR": "/proc/none/run"},
        {"PRECOMPILED_RUNTIME_DIR": str(host.root / "file" / "run")},
        {"PRECOMPILED_RUNTIME_DIR": "/" + "long/" * 40},
    ):
        client = host.start(MLP, env)
        result = client.result()
        assert {(graph["state"], graph["source"]) for graph in result["reports"]} == {("bypassed", "inline")}
        assert {graph["reason"] for graph in result["reports"]} <= {"no-daemon", "socket-path-too-long"}
        assert result["compiles"] == len(result["reports"])
        warnings = [line for line in client.errors if line.startswith("precompiled:0: RuntimeWarning: ")]
        assert len(warnings) == 1, client.text()


@pytest.mark.fault("start-races")
def test_concurrent_starts_have_one_winner(host: Host) -> None:
    starting = [start.Starting(host.settings) for _ in range(4)]
    kinds = sorted(item.result(TIMEOUT_S).kind for item in starting)
    assert kinds == ["already-running"] * 3 + ["ready"]
