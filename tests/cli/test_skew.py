"""Tests that a user can stop a daemon of another protocol version. Such a daemon remains after an upgrade in place."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from support_daemon import TIMEOUT_S, running_daemon

from precompiled import wire
from precompiled.cli import daemon
from precompiled.client import daemon_link
from precompiled.core.errors import DaemonError

pytestmark = pytest.mark.fault("version-skew")


@pytest.mark.reason("protocol-version")
def test_stop_ends_a_daemon_that_speaks_another_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_daemon(tmp_path) as running:
        pid, settings = running.pid, running.settings
        assert daemon_link.listener(settings) == (pid, os.geteuid(), os.getegid())
        process = psutil.Process(pid)
        with monkeypatch.context() as patch:
            patch.setattr(wire, "PREAMBLE", b"precompiled/99")
            with pytest.raises(DaemonError) as caught:
                daemon.ask_daemon(settings, wire.Status(), TIMEOUT_S)
            assert caught.value.code == "protocol-version"
            assert daemon.stop_daemon(settings, TIMEOUT_S) == pid
            assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
            assert daemon.stop_daemon(settings, TIMEOUT_S) is None and daemon_link.listener(settings) is None


def test_a_listener_that_is_not_our_daemon_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd, or the daemon of another user, may listen at the daemon's socket. `stop` must not kill either of
    these.
    """
    with running_daemon(tmp_path) as running:
        with monkeypatch.context() as patch:
            patch.setattr(psutil.Process, "cmdline", lambda self: ["/usr/lib/systemd/systemd", "--user"])
            assert daemon._own_listener(running.settings) is None
        assert daemon._own_listener(running.settings) == running.pid
