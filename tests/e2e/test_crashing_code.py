"""Tests that an artifact with which each process crashes is refused after the third crash."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support_host import Host
from support_wrong_artifacts import take_slow_or_crashing

from precompiled.store.crashes import CRASHES, LIMIT, LOADING

PROGRAM = str(Path(__file__).parent.parent / "programs" / "slower_program.py")
CRASH = "__import__('ctypes').string_at(0)"  # reads address 0

pytestmark = pytest.mark.integration


def test_fourth_process_compiles_in_process(host: Host) -> None:
    host.start_daemon()
    assert host.program(PROGRAM).result()["state"] == "compiled"
    assert not list((host.store.root / LOADING).iterdir()), "a finished process has left its file"
    host.store.publish(take_slow_or_crashing(host.store, CRASH))
    for _ in range(LIMIT):
        host.program(PROGRAM).ended(status=-signal.SIGSEGV)

    found = host.program(PROGRAM).result()
    assert (found["state"], found["reason"]) == ("bypassed", "crashes-processes")
    assert "3 processes" in found["message"]
    assert not list(host.store.all_artifacts()) and list(host.store.quarantined.iterdir())
    assert not list((host.store.root / LOADING).iterdir()) and not list((host.store.root / CRASHES).iterdir())
