"""Tests of publishing: slots, sizes, full disks, several writers, and writers that die."""

from __future__ import annotations

import dataclasses
import errno
import multiprocessing
import os
import shutil
import signal
import stat
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from support_store import KEY, LIBRARY, OTHER, failure, payload, quarantined

from precompiled.core.errors import CorruptArtifact, StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction
from precompiled.store.artifacts import Store

spawn = multiprocessing.get_context("spawn")


@pytest.mark.fault("file-systems")
def test_all_files_are_private_at_any_umask(store: Store) -> None:
    before = os.umask(0o000)
    try:
        store.publish(payload())
        store.publish_failure(failure(OTHER))
    finally:
        os.umask(before)
    for path in [store.root, *store.root.rglob("*")]:
        assert not path.lstat().st_mode & 0o077, path
    assert stat.S_IMODE((store.artifacts / f"{KEY}.0" / LIBRARY).stat().st_mode) == 0o700


def test_variants_take_slots_in_order(store: Store) -> None:
    for slot in range(3):
        assert store.publish(payload(guards=f"s0 > {slot}")).slot == slot
    store.publish(payload(guards="s0 > 0", tier="max-autotune"))
    assert [(artifact.slot, artifact.manifest.guards) for artifact in store.lookup(KEY)] == [
        (0, "s0 > 0"),
        (1, "s0 > 1"),
        (2, "s0 > 2"),
        (3, "s0 > 0"),
    ]


def test_tuned_artifact_replaces_an_untuned_one(store: Store) -> None:
    for guards in ("a", "b"):
        store.publish(payload(guards=guards, tier=fmt.UNTIMED))
    store.publish(payload(guards="a"))
    assert store.publish(payload(guards="a", tier=fmt.UNTIMED)).manifest.tier == fmt.DEFAULT
    found = [(artifact.manifest.guards, artifact.manifest.tier) for artifact in store.lookup(KEY)]
    assert found == [("a", fmt.DEFAULT), ("b", fmt.UNTIMED)]


def test_freed_slot_is_used_again(store: Store) -> None:
    for guards in ("a", "b"):
        store.publish(payload(guards=guards))
    shutil.rmtree(store.artifacts / f"{KEY}.0")
    assert [artifact.slot for artifact in store.lookup(KEY)] == [1]
    assert store.publish(payload(guards="c")).slot == 0


def test_equal_variant_is_stored_once(store: Store) -> None:
    first = store.publish(payload(guards="a"))
    again = store.publish(payload(guards="a"))
    assert again.path == first.path and again.manifest == first.manifest
    assert len(store.lookup(KEY)) == 1 and os.listdir(store.tmp) == []


@pytest.mark.reason("too-many-variants")
def test_publishing_with_all_slots_taken_is_an_error(store: Store) -> None:
    for number in range(fmt.MAX_VARIANTS):
        store.publish(payload(guards=str(number)))
    with pytest.raises(StoreError) as caught:
        store.publish(payload(guards="one more"))
    assert caught.value.code == "too-many-variants"
    assert len(store.lookup(KEY)) == fmt.MAX_VARIANTS and os.listdir(store.tmp) == []


@pytest.mark.parametrize("plant", ["file", "symlink", "dangling"])
def test_slot_occupied_by_another_file_is_skipped(store: Store, plant: str, tmp_path: Path) -> None:
    store.prepare()
    slot = store.artifacts / f"{KEY}.0"
    if plant == "file":
        slot.write_text("in the way")
    else:
        slot.symlink_to(tmp_path if plant == "symlink" else tmp_path / "nowhere")
    assert store.publish(payload()).slot == 1


@pytest.mark.parametrize("name", ["../outside", "native/../../outside", "/outside", "native/x.so", "other.bin"])
def test_invalid_file_names_are_refused_before_a_slot_is_taken(store: Store, name: str) -> None:
    sent = payload()
    with pytest.raises(CorruptArtifact):
        store.publish(dataclasses.replace(sent, files={**sent.files, name: b"x"}))
    assert not store.root.exists()


def test_a_manifest_too_large_for_readers_is_refused(store: Store) -> None:
    sent = payload()
    manifest = dataclasses.replace(sent.manifest, components={"graph": "x" * fmt.MAX_MANIFEST_BYTES})
    with pytest.raises(StoreError) as caught:
        store.publish(dataclasses.replace(sent, manifest=manifest))
    assert caught.value.code == "too-large" and not store.root.exists()


@pytest.mark.parametrize("where", ["root", "tmp"])
def test_unwritable_store_is_a_store_error(store: Store, where: str) -> None:
    if where == "root":
        store.root.write_text("a file in its place")
    else:
        store.prepare()
        store.tmp.rmdir()
        store.tmp.write_text("a file in its place")
    for publish in (lambda: store.publish(payload()), lambda: store.publish_failure(failure())):
        with pytest.raises(StoreError):
            publish()


@pytest.mark.fault("failing-calls")
@pytest.mark.reason("store-unwritable")
def test_no_space_is_a_store_error_and_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for publish in (lambda: store.publish(payload()), lambda: store.publish_failure(failure())):
        with pytest.raises(StoreError) as caught:
            publish()
        assert caught.value.code == "store-unwritable"
    assert os.listdir(store.tmp) == [] and os.listdir(store.artifacts) == []


def _publish_many(root: Path, barrier: Barrier, guards: str, count: int) -> None:
    store = Store(root)
    barrier.wait(60)
    for number in range(count):
        store.publish(payload(fmt.digest(bytes([number])), guards=guards))


@pytest.mark.parametrize("same", [True, False], ids=["same variant", "different variants"])
def test_concurrent_publishers_lose_no_artifact(store: Store, same: bool) -> None:
    writers, count = 4, 10
    barrier = spawn.Barrier(writers)
    processes = [
        spawn.Process(target=_publish_many, args=(store.root, barrier, "" if same else str(number), count))
        for number in range(writers)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    for number in range(count):
        artifacts = store.lookup(fmt.digest(bytes([number])))
        assert [artifact.slot for artifact in artifacts] == list(range(1 if same else writers))
        expected = {""} if same else {str(number) for number in range(writers)}
        assert {artifact.manifest.guards for artifact in artifacts} == expected
        for artifact in artifacts:
            store.read_files(artifact)
    assert os.listdir(store.tmp) == [] and os.listdir(store.quarantined) == []


def _publish_and_remove(root: Path, rounds: int) -> None:
    store = Store(root)
    for number in range(rounds):
        store.publish(payload(size=1000 + number))
        store.publish_failure(failure())
        eviction.evict(store, 0, 0)


@pytest.mark.fault("eviction")
def test_reader_sees_a_complete_artifact_or_none(store: Store) -> None:
    writer = spawn.Process(target=_publish_and_remove, args=(store.root, 100))
    writer.start()
    reads = 0
    while writer.is_alive():
        store.failure(KEY)
        for artifact in store.lookup(KEY):
            try:
                store.read_files(artifact)
                reads += 1
            except FileNotFoundError:
                pass
    writer.join()
    assert writer.exitcode == 0
    assert quarantined(store) == [] and reads > 0


STEPS = ("open", "mkdir", "fsync", "rename", "replace", "close", "unlink")


def _publish_and_die(store: Store, step: int) -> None:
    """Publish an artifact over an earlier failure record. Before system call number ``step`` + 1, SIGKILL
    this process.
    """
    count = 0

    def dying(call):  # type: ignore[no-untyped-def]
        def wrapped(*args, **kwargs):  # type: ignore[no-untyped-def]
            nonlocal count
            count += 1
            if count > step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapped

    for name in STEPS:
        setattr(os, name, dying(getattr(os, name)))
    store.publish(payload())
    store.publish_failure(failure(OTHER))


@pytest.mark.fault("eviction")
def test_artifact_is_published_if_the_one_in_its_slot_is_evicted_meanwhile(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename fails because the slot is taken, and an eviction empties the slot before the writer looks."""
    rename, failed = os.rename, []

    def taken_once(source: Path, target: Path) -> None:
        if not failed:
            failed.append(target)
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        rename(source, target)

    monkeypatch.setattr(os, "rename", taken_once)
    assert store.read_files(store.publish(payload())) == payload().files and failed


@pytest.mark.fault("killed-at-a-call")
@pytest.mark.integration
def test_writer_killed_at_any_point_leaves_a_valid_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step, outcomes = 0, set()
    while True:
        store = Store(tmp_path / str(step))
        store.publish_failure(failure())
        child = os.fork()
        if child == 0:
            try:
                _publish_and_die(store, step)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)

        artifacts = store.lookup(KEY)
        assert all(store.read_files(artifact) == payload().files for artifact in artifacts)
        assert artifacts or store.failure(KEY) is not None, "neither the artifact nor the record that it replaces"
        assert os.listdir(store.quarantined) == []
        store.publish(payload())  # a later writer is not affected
        assert [artifact.slot for artifact in store.lookup(KEY)] == [0]
        with monkeypatch.context() as patched:
            later = time.time() + eviction.TMP_MAX_AGE_S + 10
            patched.setattr(eviction.time, "time", lambda later=later: later)
            eviction.evict(store, 1 << 40, 1000)
        assert os.listdir(store.tmp) == []

        outcomes.add(bool(artifacts))
        if os.WIFEXITED(status):
            break
        step += 1
    assert step > 15 and outcomes == {True, False}


def test_concurrent_clear_does_not_break_a_writer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, cleared = os.rename, []

    def clear_first(source: Any, target: Any) -> None:
        if not cleared:
            cleared.append(1)
            eviction.clear(store)
        rename(source, target)

    monkeypatch.setattr(os, "rename", clear_first)
    assert store.read_files(store.publish(payload())) == payload().files
