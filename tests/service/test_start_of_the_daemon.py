"""Tests of errors at the start and stop of a daemon. Each error has a code, a message and an action."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from pathlib import Path

import pytest
import zmq
from click.testing import CliRunner
from precompiled.service.daemon import Daemon
from precompiled.service.server import Server, prepare_runtime_dir

from precompiled import wire
from precompiled.cli import app
from precompiled.core.config import Settings
from precompiled.core.errors import DaemonError


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(runtime_dir=tmp_path / "r", cache_dir=tmp_path / "store")


def refuses(code: str, daemon: Daemon) -> DaemonError:
    """Check that ``daemon.open`` fails with ``code``, and return the error."""
    try:
        with pytest.raises(DaemonError) as caught:
            daemon.open()
    finally:
        daemon.close()
    assert caught.value.code == code and caught.value.message
    return caught.value


@pytest.mark.reason("not-root")
def test_a_system_daemon_requires_root(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "--system" in refuses("not-root", Daemon(settings, system=True)).action


@pytest.mark.reason("runtime-dir")
def test_a_runtime_directory_that_cannot_be_created_is_an_error(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    daemon = Daemon(dataclasses.replace(settings, runtime_dir=tmp_path / "file" / "r"))
    assert "PRECOMPILED_RUNTIME_DIR" in refuses("runtime-dir", daemon).action


@pytest.mark.reason("lock")
def test_a_lock_that_is_a_directory_is_an_error(settings: Settings) -> None:
    (settings.runtime_dir / "lock").mkdir(parents=True)
    settings.runtime_dir.chmod(0o700)
    assert "PRECOMPILED_RUNTIME_DIR" in refuses("lock", Daemon(settings)).action


@pytest.mark.reason("cache-dir")
def test_a_cache_directory_that_cannot_be_created_is_an_error(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    daemon = Daemon(dataclasses.replace(settings, cache_dir=tmp_path / "file" / "store"), system=True)
    with pytest.raises(DaemonError) as caught:
        daemon._prepare_cache_dir()  # called directly, because open() of a system daemon requires root
    assert caught.value.code == "cache-dir" and "cache_dir" in caught.value.action


@pytest.mark.reason("bind")
def test_a_socket_that_cannot_be_bound_is_an_error(settings: Settings) -> None:
    server = Server(settings.runtime_dir, system=False, max_graph_bytes=100)  # the directory does not exist
    try:
        with pytest.raises(DaemonError) as caught:
            server.open()
    finally:
        server.close()
    assert caught.value.code == "bind" and str(settings.runtime_dir) in caught.value.message and caught.value.action


# ---------------------------------------------------------------- commands


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the runtime directory for the commands of a test."""
    for name in list(os.environ):
        if name.startswith("PRECOMPILED"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PRECOMPILED_RUNTIME_DIR", str(tmp_path / "r"))
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path / "store"))
    prepare_runtime_dir(tmp_path / "r", system=False)
    return tmp_path / "r"


def error_of(*arguments: str) -> dict[str, str]:
    result = CliRunner().invoke(app.cli, [*arguments, "--json"], prog_name="precompiled")
    assert result.exit_code == 1, result.output
    error: dict[str, str] = json.loads(result.stdout)["error"]
    return error


@pytest.mark.reason("stop-timed-out")
def test_stop_fails_if_the_daemon_keeps_running(place: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.RCVTIMEO, 30_000)
        router.bind(f"ipc://{place}/socket")

        def answer() -> None:
            identity, *_ = router.recv_multipart()
            router.send_multipart([identity, wire.PREAMBLE, wire.encode(wire.Stopping(os.getpid()))])

        thread = threading.Thread(target=answer)
        thread.start()
        # The timeout includes the wait for the reply, which may be slow on a busy host.
        error = error_of("daemon", "stop", "--timeout", "2")
        thread.join()
    assert error["code"] == "stop-timed-out" and f"kill -9 {os.getpid()}" in error["action"]


@pytest.mark.reason("start-timed-out")
def test_start_fails_if_the_daemon_reports_nothing_in_time(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, fifo = place / "slow", place / "fifo"
    script.write_text(f"#!/bin/sh\nread x < {fifo}\n")
    script.chmod(0o700)
    os.mkfifo(fifo)
    monkeypatch.setattr("sys.executable", str(script))
    error = error_of("daemon", "start", "--timeout", "0.1")
    assert error["code"] == "start-timed-out" and "precompiled doctor" in error["action"]
    assert "daemon.log" not in error["action"]  # the daemon has not written a log yet
    fifo.write_text("\n")  # lets the script end
