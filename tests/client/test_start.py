"""Tests of the start of a daemon on demand: only one of several starters starts it, no zombie is left, and a failure is
returned with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support_daemon import TIMEOUT_S, DaemonUnderTest, alive, processes_with, wait_until

from precompiled import wire
from precompiled.client import start
from precompiled.client.ask import request
from precompiled.client.daemon_link import daemon_reachable
from precompiled.core import config, paths


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DaemonUnderTest]:
    made = DaemonUnderTest(tmp_path)
    try:
        yield made
    finally:
        if daemon_reachable(made.settings):
            pid = request(made.settings, wire.Stop()).pid
            wait_until(lambda: not alive(pid))
        wait_until(lambda: processes_with(str(tmp_path)) == [], "no process is left")


def no_zombie() -> bool:
    return not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]


def test_a_daemon_is_started_and_detached(place: DaemonUnderTest) -> None:
    outcome = start.start_daemon(place.settings, TIMEOUT_S)
    assert (outcome.kind, outcome.runs) == ("ready", True)
    daemon = psutil.Process(outcome.pid)
    assert request(place.settings, wire.Status()).pid == outcome.pid
    assert os.getsid(outcome.pid) != os.getsid(0), "it survives the terminal"
    assert outcome.pid not in [child.pid for child in psutil.Process().children(recursive=True)]
    assert daemon.cwd() == "/"
    assert daemon.environ()["PRECOMPILED"] == "0"
    assert wait_until(no_zombie)
    wait_until(lambda: "serves" in (place.runtime_dir / "daemon.log").read_text())


def test_a_daemon_logs_to_the_file_of_choice(place: DaemonUnderTest, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.log"
    outcome = start.start_daemon(replace(place.settings, log_file=chosen), TIMEOUT_S)
    assert outcome.kind == "ready"
    wait_until(lambda: "serves" in chosen.read_text())
    assert not (place.runtime_dir / "daemon.log").exists()


def test_unwritable_log_file_fails_the_start(place: DaemonUnderTest, tmp_path: Path) -> None:
    outcome = start.start_daemon(replace(place.settings, log_file=tmp_path / "no" / "such.log"), TIMEOUT_S)
    assert outcome.kind == "failed" and "such.log" in outcome.reason and not outcome.runs


def test_start_does_not_block(place: DaemonUnderTest) -> None:
    starting = start.Starting(place.settings)
    assert starting.result(TIMEOUT_S).kind == "ready"
    assert starting.poll() == starting.result(0)


@pytest.mark.fault("start-races")
def test_racing_starters_get_one_daemon(place: DaemonUnderTest) -> None:
    racers = [start.Starting(place.settings) for _ in range(5)]
    outcomes = [racer.result(TIMEOUT_S) for racer in racers]
    assert sorted(outcome.kind for outcome in outcomes) == ["already-running"] * 4 + ["ready"]
    assert all(outcome.runs for outcome in outcomes) and daemon_reachable(place.settings)
    assert wait_until(no_zombie)


def test_settings_are_passed_to_the_daemon(place: DaemonUnderTest) -> None:
    settings = replace(place.settings, workers=3, job_timeout_s=7.5)
    flags = start.arguments(settings)
    assert flags[flags.index("--workers") + 1] == "3"
    assert flags[flags.index("--job-timeout-s") + 1] == "7.5"
    assert "--max-queue" not in flags
    assert start.start_daemon(settings, TIMEOUT_S).kind == "ready"


def test_command_line_settings_override_configuration_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Options that equal their defaults must be passed to the daemon, too. The daemon's configuration file would
    override options that are not passed.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    paths.user_config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.user_config_file().write_text('workers = 4\nmax_queue = 7\nlog = "info"\n')
    monkeypatch.setenv("PRECOMPILED_MAX_QUEUE", "1000")
    flags = start.arguments(config.load({"workers": 0, "log": "warning"}))
    assert flags[flags.index("--workers") + 1] == "0"
    assert flags[flags.index("--max-queue") + 1] == "1000"
    assert flags[flags.index("--log") + 1] == "warning"
    monkeypatch.setenv("PRECOMPILED_LOG", "debug")
    assert "--log" not in start.arguments(config.load({})), "a client's own"


@pytest.mark.parametrize("runtime_dir", ["/proc/nothing/here", "/dev/null/x", "/" + "x" * 150])
def test_failed_start_has_a_reason(place: DaemonUnderTest, runtime_dir: str) -> None:
    outcome = start.start_daemon(replace(place.settings, runtime_dir=Path(runtime_dir)), TIMEOUT_S)
    assert outcome.kind == "failed" and outcome.reason and not outcome.runs
    assert wait_until(no_zombie)


def test_unusable_interpreter_is_a_failed_start(place: DaemonUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent")
    assert start.start_daemon(place.settings, TIMEOUT_S).kind == "failed"
    monkeypatch.setattr("sys.executable", "")
    assert start.start_daemon(place.settings, TIMEOUT_S).kind == "failed"
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert start.start_daemon(place.settings, TIMEOUT_S).kind == "failed"


@pytest.mark.fault("hangs")
def test_slow_start_times_out(place: DaemonUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    script = place.directory / "slow"
    script.write_text("#!/bin/sh\nread x < $0.fifo\n")
    script.chmod(0o755)
    os.mkfifo(f"{script}.fifo")
    monkeypatch.setattr("sys.executable", str(script))
    starting = start.Starting(place.settings)
    assert starting.result(0.1).kind == "timed-out"
    with open(f"{script}.fifo", "w") as fifo:
        fifo.write("\n")
    assert starting.result(TIMEOUT_S).kind == "failed"
