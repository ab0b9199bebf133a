"""Tests that an artifact is refused once processes have crashed in their first calls of it, and not before. Each
process is real: it is forked, and ends by a signal.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from precompiled.store import artifact_format as fmt
from precompiled.store import eviction
from precompiled.store.artifacts import Store
from precompiled.store.crashes import COUNTS_S, CRASHES, LIMIT, LOADING, FirstCalls, name_of, refuse_crashing

KEY = "a" * 64


def publish(store: Store) -> None:
    who = {"version": "test"}
    manifest = fmt.Manifest(KEY, "graph", {}, {}, "cpu", "", {}, compile_s=1.0, created=time.time(), compiled_by=who)
    store.publish(fmt.Payload(manifest, {fmt.BUNDLE: b"code"}))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path / "store")
    publish(found)
    return found


def name(store: Store) -> str:
    (artifact,) = store.lookup(KEY)
    return name_of(artifact)


def process(store: Store, calls: Callable[[FirstCalls, str], None], *, signal_: int = signal.SIGSEGV) -> None:
    """Run ``calls`` in a process that ends by a signal."""
    artifact = name(store)
    child = os.fork()
    if child == 0:
        if signal_ != signal.SIGKILL:
            signal.signal(signal_, signal.SIG_DFL)  # pytest's faulthandler would print a traceback
        calls(FirstCalls(store.root), artifact)
        os.kill(os.getpid(), signal_)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal_


def begins(first_calls: FirstCalls, name: str) -> None:
    first_calls.begin(name)


def finishes(first_calls: FirstCalls, name: str) -> None:
    first_calls.begin(name)
    first_calls.finish(name, called=True)


@pytest.mark.reason("crashes-processes")
def test_artifact_is_refused_after_crashes_in_a_row(store: Store) -> None:
    for _ in range(LIMIT):
        assert store.lookup(KEY) and store.failure(KEY) is None
        process(store, begins)
        refuse_crashing(store, ttl_s=60.0)
    assert not store.lookup(KEY)
    failure = store.failure(KEY)
    assert failure is not None and failure.reason == "crashes-processes"
    assert not os.listdir(store.root / LOADING) and not os.listdir(store.root / CRASHES)


def test_finished_first_calls_end_the_count(store: Store) -> None:
    for _ in range(LIMIT):
        process(store, begins)
        refuse_crashing(store, ttl_s=60.0)
        process(store, finishes)
        refuse_crashing(store, ttl_s=60.0)
    assert store.lookup(KEY)


def test_crashes_of_an_earlier_artifact_do_not_count(store: Store) -> None:
    for _ in range(LIMIT):
        process(store, begins)
        refuse_crashing(store, ttl_s=60.0)
        eviction.clear(store)
        publish(store)
    assert store.lookup(KEY)


def test_later_signals_do_not_count(store: Store) -> None:
    for _ in range(2 * LIMIT):
        process(store, finishes, signal_=signal.SIGKILL)
        refuse_crashing(store, ttl_s=60.0)
    assert store.lookup(KEY) and not (store.root / CRASHES).exists()


def test_signal_long_after_the_first_call_does_not_count(store: Store) -> None:
    for _ in range(LIMIT):
        process(store, begins)
        (file,) = (store.root / LOADING).iterdir()
        earlier = time.time() - COUNTS_S - 1
        os.utime(file, (earlier, earlier))
        refuse_crashing(store, ttl_s=60.0)
    assert store.lookup(KEY) and not os.listdir(store.root / LOADING)


def test_running_process_does_not_count(store: Store) -> None:
    first_calls = FirstCalls(store.root)
    first_calls.begin(name(store))
    refuse_crashing(store, ttl_s=60.0)
    assert len(os.listdir(store.root / LOADING)) == 1 and not (store.root / CRASHES).exists()
    first_calls.close()
    assert not os.listdir(store.root / LOADING)


def test_child_of_a_fork_leaves_the_file_to_its_parent(store: Store) -> None:
    first_calls = FirstCalls(store.root)
    first_calls.begin(name(store))
    child = os.fork()
    if child == 0:
        first_calls.after_fork()
        first_calls.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(os.listdir(store.root / LOADING)) == 1
    refuse_crashing(store, ttl_s=60.0)
    assert not (store.root / CRASHES).exists()
    first_calls.close()


def test_foreign_files_are_removed_without_a_count(store: Store) -> None:
    (store.root / LOADING).mkdir()
    (store.root / LOADING / "file").write_bytes(b"../../x\n\xff\n" + name(store).encode() + b"/..")
    refuse_crashing(store, ttl_s=60.0)
    assert not os.listdir(store.root / LOADING) and not (store.root / CRASHES).exists()


def test_unwritable_store_is_tried_once(store: Store) -> None:
    loading = store.root / LOADING
    loading.write_bytes(b"")  # where the folder should be
    first_calls = FirstCalls(store.root)
    first_calls.begin(name(store))
    loading.unlink()
    first_calls.finish(name(store), called=False)
    first_calls.begin(name(store))
    assert not loading.exists()
    first_calls.close()
