"""Tests that a FIFO in place of a file blocks no process: the open of a FIFO waits for a process that writes to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from support_daemon import TIMEOUT_S, DaemonUnderTest, wait_until

from precompiled.cli import app
from precompiled.client import start
from precompiled.client.daemon_link import daemon_reachable
from precompiled.core import config, paths
from precompiled.core.config import Settings
from precompiled.core.errors import ConfigError
from precompiled.farm import state as farm_state
from precompiled.remote import helper_link, helper_process
from precompiled.remote import state as remote_state
from precompiled.store.lines import AppendedFile

# The timeout interrupts an open that blocks.
pytestmark = [pytest.mark.fault("hangs"), pytest.mark.timeout(TIMEOUT_S)]


def fifo(path: Path) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.mkfifo(path, 0o600)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DaemonUnderTest]:
    daemon = DaemonUnderTest(tmp_path)
    try:
        yield daemon
    finally:
        daemon.cleanup()


@pytest.mark.parametrize("whose", ["user", "system"])
def test_a_fifo_as_configuration_file_is_an_error(whose: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(paths, "SYSTEM_CONFIG", tmp_path / "etc.toml")
    path = fifo(paths.user_config_file() if whose == "user" else paths.SYSTEM_CONFIG)
    with pytest.raises(ConfigError, match="not a regular file") as caught:
        config.load()
    assert str(path) in caught.value.message and caught.value.action
    path.unlink()
    path.symlink_to(os.devnull)
    assert config.load().mode == "eager", "an empty file"


def test_a_fifo_as_log_fails_the_start_of_the_daemon_with_a_reason(
    place: DaemonUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.runtime_dir.mkdir(mode=0o700)
    (place.runtime_dir / paths.LOCK_NAME).touch(0o600)
    path = fifo(place.settings.log_path)
    outcome = start.start_daemon(place.settings, TIMEOUT_S)
    assert outcome.kind == "failed" and str(path) in outcome.reason and "not a regular file" in outcome.reason
    wait_until(lambda: not daemon_reachable(place.settings))
    monkeypatch.setenv("PRECOMPILED_RUNTIME_DIR", str(place.runtime_dir))
    shown = CliRunner().invoke(app.cli, ["daemon", "logs"])
    assert shown.exit_code == 1 and "not a regular file" in shown.output + shown.stderr
    path.unlink()
    assert start.start_daemon(place.settings, TIMEOUT_S).kind == "ready"


def test_a_fifo_as_state_of_a_remote_or_farm_counts_as_no_state(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, remote="file:///nowhere", farm="ray://nowhere")
    for name in (helper_link.STATE, helper_link.FARM_STATE):
        fifo(helper_link.folder(tmp_path) / name)
    found = remote_state.last_state(settings)
    assert found is not None and found["state"] == "unused"
    assert farm_state.last_state(settings) is not None


def test_a_fifo_as_log_of_a_helper_or_as_record_is_an_error(tmp_path: Path) -> None:
    fifo(helper_link.folder(tmp_path) / helper_process.LOG)
    with pytest.raises(OSError, match="not a regular file"):
        helper_process.ensure(Settings(cache_dir=tmp_path, remote="file:///nowhere"))
    with pytest.raises(OSError, match="not a regular file"):
        AppendedFile(fifo(tmp_path / "lines")).append([1])
