"""Tests that a host that only fetches artifacts keeps its store within its budgets, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support_daemon import wait_until
from support_remote import fetched, host
from support_store import KEY, OTHER, payload

from precompiled.core import config
from precompiled.core.config import Settings
from precompiled.remote import evicting, helper_link, helper_process
from precompiled.remote.evicting import Evicting
from precompiled.store.artifacts import Store


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    found = config.load(
        {"cache_dir": tmp_path / "store", "remote": f"file://{tmp_path / 'bucket'}", "remote_unsigned": "1"}
    )
    yield found
    helper_link.ask(found.cache_dir, {"do": "stop"})


def old(store: Store, key: str) -> None:
    os.utime(store.publish(payload(key, size=100_000)).path, (1.0, 1.0))


def test_helper_evicts_to_make_room_for_fetched_artifacts(settings: Settings, tmp_path: Path) -> None:
    """No worker runs in this test, so only the helper can make room in the store."""
    store, there = Store(settings.cache_dir), host(tmp_path / "other", settings.remote)
    there.put_artifact(there.store.publish(payload(OTHER, size=100_000)))
    old(store, KEY)
    helper_process.ensure(replace(settings, cache_max_bytes=350_000))
    assert fetched(settings.cache_dir, OTHER)
    wait_until(lambda: not store.lookup(KEY))
    assert store.lookup(OTHER)


def test_eviction_runs_after_a_fetch_and_at_intervals(tmp_path: Path) -> None:
    store, failed, now = Store(tmp_path), list[Exception](), 100.0
    found = Evicting(store, 0, 0, failed.append, clock=lambda: now)
    old(store, KEY)
    found.look(0)
    assert not found.busy
    found.look(1)
    wait_until(lambda: not found.busy)
    assert not store.lookup(KEY)
    old(store, KEY)
    found.look(2)
    assert not found.busy, "it is too early"
    now += evicting.INTERVAL_S
    found.look(2)
    wait_until(lambda: not found.busy)
    assert not store.lookup(KEY) and not failed
