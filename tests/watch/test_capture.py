"""Tests that the watcher reads the last report of a capture before it acts on the exit status."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from precompiled.service.watch.capture import Capture

from precompiled import wire


def test_last_report_of_a_capture_counts_before_its_exit_status(tmp_path: Path) -> None:
    """A capture reports an error and exits. A watcher that checked the exit status first would lose the error
    message.
    """
    registration = wire.Registration(
        kind="run",
        command=[sys.executable, "-c", "raise SystemExit(1)"],
        executable=sys.executable,
        directory=str(tmp_path),
        store=str(tmp_path),
        variables=dict(os.environ),
    )
    capture = Capture("token", registration, tmp_path, str(tmp_path / "reports"), 1 << 40, "")
    try:
        capture.look()
        os.waitid(os.P_PIDFD, capture.pidfd, os.WEXITED | os.WNOWAIT)
        assert capture.check(time.monotonic()) is None, "its reports were read before it exited"
        capture.look()
        capture.on_report({"event": "done", "ok": False, "error": "SyntaxError"})
        end = capture.check(time.monotonic())
        assert end is not None and end.error == "SyntaxError"
    finally:
        capture.close()
