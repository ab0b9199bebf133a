"""Tests of a helper with a farm: couriers, workers, a remote, and the reported reason if the farm is unusable."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from support_daemon import wait_until
from support_driver import Drivers, body, job
from support_store import KEY, OTHER, payload

from precompiled.client.process import PROCESS
from precompiled.core import config
from precompiled.core.config import Settings
from precompiled.core.errors import ConfigError
from precompiled.farm import farm
from precompiled.graph import key
from precompiled.remote import ahead, courier, helper, helper_link, helper_process, starting
from precompiled.remote.bucket import Bucket
from precompiled.remote.lease import is_lease
from precompiled.store.artifacts import Store


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Yield the settings of a user who sets a farm but has no Ray."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('there is no Ray')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    root = tmp_path / "store"
    yield config.load({"cache_dir": root, "farm": "auto"})
    running = (helper_link.state(root, helper_link.FARM_STATE) or {}).get("pid") if helper_link.greeting(root) else None
    helper_link.ask(root, {"do": "stop"})
    if running:
        wait_until(lambda: not psutil.pid_exists(running) or psutil.Process(running).status() == "zombie")


@pytest.mark.reason("farm-unusable")
def test_without_ray_jobs_stay_local_and_the_reason_is_shown(settings: Settings) -> None:
    root = settings.cache_dir
    helper_process.ensure(settings)
    assert courier.run_job(job(KEY, str(root))).outcome == "kept"
    status = helper_link.ask(root, {"do": "farm"})
    assert status is not None and (status["state"], status["code"]) == ("unusable", "farm-unusable")
    assert "no Ray" in status["reason"] and "pip install" in status["reason"]
    kept = courier.run_job(job(KEY, str(root)))
    assert (kept.outcome, kept.again_s) == ("kept", farm.REST_S)
    with helper_link.turn(root, KEY) as turn:  # a free worker of this host compiles the graph
        assert not turn.found and not turn.again_s
        turn.published(0)
    env = {
        **os.environ,
        "PRECOMPILED_CACHE_DIR": str(root),
        "PRECOMPILED_FARM": "auto",
        "PRECOMPILED_RUNTIME_DIR": str(root.parent / "run"),
    }

    def command(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "precompiled", *arguments],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        return done.stdout

    shown: dict[str, Any] = json.loads(command("farm", "status", "--json"))
    assert (shown["code"], shown["running"], shown["sent"]) == ("farm-unusable", True, 0)
    assert "no Ray" in command("farm", "status")
    status = json.loads(command("status", "--json"))["farm"]  # no daemon runs in this test
    assert (status["state"], status["farm"]) == ("unusable", "auto")


def test_courier_finds_an_artifact_that_was_published_meanwhile(settings: Settings) -> None:
    Store(settings.cache_dir).publish(payload())
    assert courier.run_job(job(KEY, str(settings.cache_dir))).outcome == "exists"
    finished = courier.run_job(job(OTHER, str(settings.cache_dir)))  # no helper runs in this test
    assert (finished.outcome, finished.again_s) == ("kept", courier.KEEP_S)


def test_farm_without_a_remote_starts_a_helper_and_no_trace_waits(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PROCESS, "ahead", None)
    found = ahead.begin(settings)
    assert found is not None and not found.wait()
    wait_until(lambda: helper_link.greeting(settings.cache_dir) is not None)
    wait_until(lambda: not found.under_way)
    found.used({KEY}, set(), (), ())
    assert helper_link.state(settings.cache_dir) is None, "of a remote there is nothing to tell"


@pytest.mark.parametrize(
    ("given", "farm"),
    [
        ("auto", "auto"),
        ("ray://head:10001", "ray://head:10001"),
        ("none", ""),
        ("", ""),
    ],
)
def test_farm_setting_accepts_auto_none_and_ray_urls(given: str, farm: str) -> None:
    assert config.load({"farm": given}).farm == farm
    with pytest.raises(ConfigError, match="ray://host:port"):
        config.load({"farm": "http://head"})


def test_graph_that_ranks_share_is_not_offered_to_the_farm(settings: Settings) -> None:
    """A farm would compile such a graph once per rank. On this host, one worker compiles the graph while the workers of
    the other ranks wait (store/rank_turns.py).
    """
    inputs = {"args": [], "meshes": [{"shape": [2], "ranks": [0, 1], "rank": 0}]}
    program = {name: {} for name in key.SECTIONS} | {"inputs": inputs, "hints": [], "floats": []}
    graph = json.dumps(program, separators=(",", ":")).encode()
    finished = courier.run_job(msgspec.structs.replace(job(KEY, str(settings.cache_dir)), graph=graph))
    assert (finished.outcome, finished.again_s) == ("kept", courier.OF_RANKS_S)


@contextmanager
def with_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Bucket, Drivers, helper.Helper]]:
    """Yield a store whose helper has a remote and a farm of one node. The helper runs in a thread of this process."""
    root, drivers = tmp_path / "store", Drivers(monkeypatch)
    url = f"file://{tmp_path / 'bucket'}"
    arguments = ["--store", str(root), "--remote", url, "--unsigned", "--farm", "auto"]
    folder = helper_link.folder(root)
    for directory in (root, folder):
        directory.mkdir(mode=0o700)
    listening = starting.listening(folder)
    running = helper.Helper(helper._parser().parse_args(arguments), arguments)
    thread = threading.Thread(target=running.serve, args=(listening,))
    thread.start()
    try:
        assert courier.run_job(job(KEY, str(root))).outcome == "kept"  # this first job makes the farm start its driver
        drivers.says_nodes(1)
        wait_until(lambda: running._farm.document()["state"] == "ok")
        yield root, Bucket(url, 10.0), drivers, running
    finally:
        helper_link.ask(root, {"do": "stop"})
        thread.join(30.0)
        running._farm.close()
        drivers.close()
        listening.close()
    assert not thread.is_alive()


def leases(bucket: Bucket, key: str = KEY) -> list[str]:
    return [name for name in bucket.listed(f"artifacts/{key}") if is_lease(name)]


@pytest.mark.fault("remote")
def test_courier_that_dies_before_its_reply_leaves_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the lease stayed, all processes that need the graph would wait for it, on this host and on others."""
    with with_remote(tmp_path, monkeypatch) as (root, bucket, _drivers, running):
        answers: list[dict[str, Any]] = []
        remotes = running._turns._remotes

        def killed(key: str) -> dict[str, Any]:
            answers.append(remotes(key))
            gone.shutdown(socket.SHUT_RDWR)
            gone.close()
            return answers[-1]

        with monkeypatch.context() as patch:
            patch.setattr(running._turns, "_remotes", killed)
            while not answers or "compile" not in answers[-1]:  # repeat the request, because the remote may answer late
                gone = socket.socket(socket.AF_UNIX)
                gone.connect(str(helper_link.folder(root) / helper_link.SOCKET))
                gone.sendall(json.dumps({"do": "turn", "key": KEY, "courier": True}).encode() + b"\n")
                before = len(answers)
                wait_until(lambda before=before: len(answers) > before)
        wait_until(lambda: not running._claims.held and not leases(bucket))
        wait_until(lambda: courier.run_job(job(KEY, str(root))).outcome == "parked" and running._farm.busy)


def test_farm_result_is_put_into_the_remote_and_its_lease_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with with_remote(tmp_path, monkeypatch) as (root, bucket, drivers, running):
        # Before the helper sends a job to the farm, it asks the remote and takes the key's lease.
        wait_until(lambda: courier.run_job(job(KEY, str(root))).outcome == "parked" and running._farm.busy)
        assert len(leases(bucket)) == 1
        assert courier.run_job(job(KEY, str(root))).again_s > 0
        with helper_link.turn(root, KEY) as turn:
            assert turn.again_s > 0 and not turn.found, "a worker that is free waits for it, too"
        drivers.says_ended(drivers.hears().number, "compiled", body(KEY))
        wait_until(lambda: [is_lease(name) for name in bucket.listed(f"artifacts/{KEY}")] == [False])
        assert courier.run_job(job(KEY, str(root))).outcome == "exists"
        assert (helper_link.state(root, helper_link.FARM_STATE) or {})["compiled"] == 1
        # If the farm fails, the helper releases the lease, so that the next process that needs the graph can compile
        # it.
        wait_until(lambda: courier.run_job(job(OTHER, str(root))).outcome == "parked" and running._farm.busy)
        drivers.says_ended(drivers.hears().number, "failed", code="farm-failed", message="why")
        wait_until(lambda: not bucket.listed(f"artifacts/{OTHER}"))
        assert courier.run_job(job(OTHER, str(root))).outcome == "kept"
