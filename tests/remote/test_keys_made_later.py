"""Tests of the natural order: set the remote, run a program, read the status, and only then make a key."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from support_host import TIMEOUT_S, Host

from precompiled.remote import helper_link

pytestmark = pytest.mark.integration

PROGRAM = """
import torch, precompiled
precompiled.enable("wait")
compiled = torch.compile(lambda x: {expression})  # without kernels of its own, so a worker starts no C++ compiler
compiled(torch.ones(4, 4))
"""


def run(host: Host, env: dict[str, str], expression: str) -> list[str]:
    """Run a program with one graph. Returns its errors."""
    client = host.program("-c", PROGRAM.format(expression=expression), env=env)
    client.ended()
    return client.errors


def state(host: Host, env: dict[str, str], wanted: str) -> Any:
    """Wait until the helper reports the state. Returns what `status` reports about the remote."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = host.answer(env, "status")["remote"]
        if found["state"] == wanted:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)  # a poll, because the helper reports a change only in its state file


def kinds(host: Host, env: dict[str, str]) -> list[str]:
    """Return the kinds of the objects in the remote, after the helper has tried all puts."""
    assert helper_link.ask(host.store.root, {"do": "flush"}, wait_s=TIMEOUT_S) == {}
    return sorted(item["kind"] for item in host.answer(env, "remote", "ls")["objects"])


@pytest.mark.reason("remote-unusable")
def test_key_made_after_the_first_run_needs_no_restart(served: Host, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    env = {"PRECOMPILED_REMOTE": f"file://{bucket}", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    (warning,) = run(served, env, "x @ x")
    assert warning.startswith("precompiled:0: RuntimeWarning: the remote is not used (remote-unusable): ")
    assert "`precompiled remote keys new`" in warning
    assert served.stats().fallbacks == {"remote-unusable": 1}
    unusable = state(served, env, "unusable")
    assert (unusable["code"], unusable["put"]) == ("remote-unusable", 0) and not bucket.exists()

    key = served.answer(env, "remote", "keys", "new")
    assert state(served, env, "ok")["pid"] == unusable["pid"], "the same helper uses the key"
    assert kinds(served, env) == ["artifact", "list"], "the first run's objects are put now"
    assert run(served, env, "x @ x.T") == []
    assert kinds(served, env) == ["artifact", "artifact", "list", "list"]

    # The helper also notices that the last trusted key is gone.
    Path(key["path"]).unlink()
    assert state(served, env, "unusable")["code"] == "remote-unusable"


def test_daemon_stop_stops_the_helper(host: Host, tmp_path: Path) -> None:
    env = {
        "PRECOMPILED_REMOTE": f"file://{tmp_path / 'bucket'}",
        "PRECOMPILED_REMOTE_UNSIGNED": "1",
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    assert run(host, env, "x.T @ x") == []
    pid = state(host, env, "ok")["pid"]
    stopped = host.answer(env, "daemon", "stop")
    assert stopped["stopped"] and stopped["helper_pid"] == pid
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert sorted(path.name for path in (tmp_path / "bucket").iterdir()), "the helper has put its objects"
    assert host.answer(env, "daemon", "stop") == {"stopped": False, "pid": None, "helper_pid": None}
