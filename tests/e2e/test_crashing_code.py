"""Tests that an artifact is refused after three processes have crashed with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support_host import Host
from support_wrong_artifacts import take_slow_or_crashing

from precompiled.remote import helper_link
from precompiled.store.crashes import CRASHES, LIMIT, LOADING

PROGRAM = str(Path(__file__).parent.parent / "programs" / "slower_program.py")
CRASH = "__import__('ctypes').string_at(0)"  # reads address 0

pytestmark = pytest.mark.integration


def test_fourth_process_compiles_in_process_and_withdraws_the_artifact(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = tmp_path / "bucket"
    monkeypatch.setenv("PRECOMPILED_REMOTE", f"file://{bucket}")
    monkeypatch.setenv("PRECOMPILED_REMOTE_UNSIGNED", "1")
    remote = {name: os.environ[name] for name in ("PRECOMPILED_REMOTE", "PRECOMPILED_REMOTE_UNSIGNED")}
    host.start_daemon()
    assert host.program(PROGRAM, env=remote).result()["state"] == "compiled"
    helper_link.ask(host.store.root, {"do": "flush"})
    assert list(bucket.glob("artifacts/*/*"))
    assert not list((host.store.root / LOADING).iterdir()), "a finished process has left its file"
    host.store.publish(take_slow_or_crashing(host.store, CRASH))
    for _ in range(LIMIT):
        host.program(PROGRAM).ended(status=-signal.SIGSEGV)

    found = host.program(PROGRAM, env=remote).result()
    assert (found["state"], found["reason"]) == ("bypassed", "crashes-processes")
    assert "3 processes" in found["message"]
    assert not list(host.store.all_artifacts()) and list(host.store.quarantined.iterdir())
    assert not list((host.store.root / LOADING).iterdir()) and not list((host.store.root / CRASHES).iterdir())
    helper_link.ask(host.store.root, {"do": "flush"})
    assert not list(bucket.glob("artifacts/*/*")), "other hosts would load the artifact"
    assert helper_link.ask(host.store.root, {"do": "stop"}) == {}
