"""A helper with a farm that cannot be used: couriers are told so, workers compile, and people hear why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from support_daemon import wait_until
from support_store import KEY, OTHER, payload

from precompiled import courier, wire
from precompiled.client import ahead, remote_helper
from precompiled.client.process import PROCESS
from precompiled.core import config
from precompiled.core.config import Settings
from precompiled.core.errors import ConfigError
from precompiled.farm import farm
from precompiled.graph import key
from precompiled.remote import link
from precompiled.store.artifacts import Store


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Those of a user without Ray."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('there is no Ray')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    root = tmp_path / "store"
    yield config.load({"cache_dir": root, "farm": "auto"})
    running = (link.state(root, link.FARM_STATE) or {}).get("pid") if link.greeting(root) else None
    link.ask(root, {"do": "stop"})
    if running:
        wait_until(lambda: not psutil.pid_exists(running) or psutil.Process(running).status() == "zombie")


def job(root: Path, key: str) -> wire.Job:
    interpreter = wire.Interpreter(sys.executable, sys.prefix, "3", "2", "", {})
    return wire.Job(
        id="1", key=key, store=str(root), device="cpu", graph=b"{}", compile_threads=1, failure_ttl_s=1.0,
        may_park=True, offer=wire.Offer(interpreter, 60.0),
    )  # fmt: skip


@pytest.mark.reason("farm-unusable")
def test_without_ray_a_job_stays_here_and_people_hear_why(settings: Settings) -> None:
    root = settings.cache_dir
    remote_helper.ensure(settings)
    assert courier.run_job(job(root, KEY)).outcome == "kept"
    told = link.ask(root, {"do": "farm"})
    assert told is not None and (told["state"], told["code"]) == ("unusable", "farm-unusable")
    assert "no Ray" in told["reason"] and "pip install" in told["reason"]
    kept = courier.run_job(job(root, KEY))
    assert (kept.outcome, kept.again_s) == ("kept", farm.REST_S)
    with link.turn(root, KEY) as turn:  # a worker that is free compiles
        assert not turn.found and not turn.again_s
        turn.published(0)
    env = {**os.environ, "PRECOMPILED_CACHE_DIR": str(root), "PRECOMPILED_FARM": "auto"}
    done = subprocess.run(
        [sys.executable, "-m", "precompiled", "farm", "status", "--json"], env=env, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    shown: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == 1 and (shown["code"], shown["running"]) == ("farm-unusable", True), done.stderr


def test_a_courier_finds_what_was_published_meanwhile(settings: Settings) -> None:
    Store(settings.cache_dir).publish(payload())
    assert courier.run_job(job(settings.cache_dir, KEY)).outcome == "exists"
    finished = courier.run_job(job(settings.cache_dir, OTHER))  # there is no helper
    assert (finished.outcome, finished.again_s) == ("kept", courier.KEEP_S)


def test_a_farm_alone_has_a_helper_and_no_trace_waits_for_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PROCESS, "ahead", None)
    found = ahead.begin(settings)
    assert found is not None and not found.wait()
    wait_until(lambda: link.greeting(settings.cache_dir) is not None)
    wait_until(lambda: not found.under_way)
    found.used({KEY}, set(), ())
    assert link.state(settings.cache_dir) is None, "of a remote there is nothing to tell"


@pytest.mark.parametrize(("given", "farm"), [
    ("auto", "auto"), ("ray://head:10001", "ray://head:10001"), ("none", ""), ("", ""),
])  # fmt: skip
def test_what_the_setting_may_be(given: str, farm: str) -> None:
    assert config.load({"farm": given}).farm == farm
    with pytest.raises(ConfigError, match="ray://host:port"):
        config.load({"farm": "http://head"})


def test_what_one_compile_makes_for_several_ranks_is_not_offered(settings: Settings) -> None:
    """Each of them would be compiled there; here one is, and the others wait for it (store/turns.py)."""
    inputs = {"args": [], "meshes": [{"shape": [2], "ranks": [0, 1], "rank": 0}]}
    program = {name: {} for name in key.SECTIONS} | {"inputs": inputs, "hints": [], "floats": []}
    graph = json.dumps(program, separators=(",", ":")).encode()
    finished = courier.run_job(msgspec.structs.replace(job(settings.cache_dir, KEY), graph=graph))
    assert (finished.outcome, finished.again_s) == ("kept", courier.OF_RANKS_S)
