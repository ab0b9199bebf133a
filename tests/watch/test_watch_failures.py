"""Tests of what a watch reports about a graph that could not be compiled."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import pytest
from precompiled.service.watch.capture import CapturedGraph
from precompiled.service.watch.files import Files
from precompiled.service.watch.watch import CaptureResult, RunningWatch, Tools

from precompiled import wire
from precompiled.store.artifact_format import Failure
from precompiled.store.artifacts import Store

pytestmark = pytest.mark.fault("watch")

KEY = "ab" * 32


@pytest.fixture
def watch(tmp_path: Path) -> RunningWatch:
    registration = wire.Registration("run", ["python", "train.py"], "python", "/", str(tmp_path / "store"), {})
    found = RunningWatch("0", registration, Tools(Files(), mock.Mock(), mock.Mock(), mock.Mock()))
    found.good = CaptureResult({}, {"1": CapturedGraph("1", "forward [0/0]", KEY, "compiling")})
    return found


def test_error_of_the_worker_is_shown(watch: RunningWatch) -> None:
    message = "CppCompileError: C++ compile error\nTraceback: " + "line\n" * 1000
    Store(Path(watch.registration.store)).publish_failure(
        Failure(KEY, "forward [0/0]", "compile-error", message, time.time(), 3600.0)
    )
    assert not watch.job_ended(["2"], "failed", "compile-error"), "another one's job, of the same key"
    assert watch.status().state == "compiling"
    assert watch.job_ended(["2", "1"], "failed", "compile-error")
    status = watch.status()
    assert status.state == "failed"
    assert status.error.startswith("forward [0/0]: compile-error: CppCompileError: C++ compile error\nTraceback")
    assert len(status.error) < 3000 and status.graphs[0].reason.startswith("compile-error: CppCompileError")


@pytest.mark.parametrize("kept", ["", "an older one"])
def test_code_is_shown_if_there_is_no_failure_record(watch: RunningWatch, kept: str) -> None:
    if kept:
        Store(Path(watch.registration.store)).publish_failure(
            Failure(KEY, "forward [0/0]", "undecodable-graph", kept, time.time(), 3600.0)
        )
    assert watch.job_ended(["1"], "failed", "compile-error")
    assert watch.status().error == "forward [0/0]: compile-error"
