"""Tests of eviction and removal: what is removed, in which order, and what is kept."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from support_store import KEY, OTHER, failure, flip, payload, use

from precompiled.store import artifact_format as fmt
from precompiled.store import eviction, scratch
from precompiled.store.artifacts import Store


def test_eviction_removes_the_least_recently_used_artifacts(store: Store) -> None:
    keys = [fmt.digest(bytes([number])) for number in range(4)]
    artifacts = [store.publish(payload(key)) for key in keys]
    for artifact, age in zip(artifacts, (10, 400, 200, 300), strict=True):
        use(artifact, time.time() - age)
    store.touch(artifacts[1])  # the oldest artifact becomes the most recently used
    total = sum(file.stat().st_size for file in store.artifacts.rglob("*") if file.is_file())
    removed = eviction.evict(store, total // 2 + 10, 1000)
    assert removed.artifacts == 2 and removed.bytes > 400
    assert {artifact.manifest.key for artifact in store.all_artifacts()} == {keys[0], keys[1]}
    assert os.listdir(store.tmp) == []
    assert eviction.evict(store, total, 1000).artifacts == 0


@pytest.mark.fault("file-systems")
def test_eviction_by_inodes(store: Store) -> None:
    first, second = store.publish(payload(KEY)), store.publish(payload(OTHER))
    use(first, time.time() - 100)
    assert eviction.evict(store, 1 << 40, 7).artifacts == 1
    assert list(store.all_artifacts()) == [second]


def test_eviction_removes_leftovers_of_dead_writers_and_expired_records(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = store.publish(payload())
    (store.tmp / "dead-writer").mkdir()
    (store.tmp / "dead-writer" / "entry.bin").write_bytes(b"half")
    (store.tmp / "dead-file").write_bytes(b"half")
    store.publish_failure(failure(OTHER, created=time.time(), ttl_s=60))
    expired = fmt.digest(b"expired")
    store.publish_failure(failure(expired, created=time.time() - 100, ttl_s=1))
    (store.quarantined / "old").write_text("x")
    assert eviction.evict(store, 1 << 40, 1000).artifacts == 0
    assert len(os.listdir(store.tmp)) == 2 and os.listdir(store.quarantined) == ["old"]
    assert {item.key for item in store.failures()} == {OTHER}
    assert not (store.artifacts / f"{expired}.failed").exists()

    later = time.time() + eviction.QUARANTINE_MAX_AGE_S + 10
    monkeypatch.setattr(eviction.time, "time", lambda: later)
    eviction.evict(store, 1 << 40, 1000)
    assert os.listdir(store.tmp) == [] and os.listdir(store.quarantined) == []
    assert list(store.all_artifacts()) == [artifact]


def _scratch(store: Store, name: str, age_s: float, size: int = 1000) -> Path:
    path = store.root / scratch.SCRATCH / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"s" * size)
    when = time.time() - age_s
    os.utime(path, (when, when))
    return path


def test_scratch_files_are_evicted_oldest_first_within_their_share(store: Store) -> None:
    store.prepare()
    hour, day = 3600.0, 86400.0
    stale = _scratch(store, "a/stale", 8 * day)
    oldest, older, newer = (_scratch(store, f"b/{age}", age * hour) for age in (30, 20, 10))
    eviction.evict(store, 1 << 40, 1000)
    assert not stale.exists() and oldest.exists(), "with room to spare, age alone decides"
    eviction.evict(store, 8000, 1000)
    assert not oldest.exists() and older.exists() and newer.exists()
    running = _scratch(store, "c/running", 0.0, 10_000)
    eviction.evict(store, 0, 0)
    assert not older.exists() and not newer.exists()
    assert running.exists() and stale.parent.is_dir(), "a running compile keeps its files and all directories"


def test_old_empty_scratch_directories_are_removed(store: Store) -> None:
    store.prepare()
    stale = _scratch(store, "1-boot/ab/stale", 8 * 86400.0)
    old = time.time() - 8 * 86400.0
    stale.unlink()
    for directory in (stale.parent, stale.parent.parent):
        os.utime(directory, (old, old))
    _scratch(store, "2-boot/ab/new", 0.0)
    eviction.evict(store, 1 << 40, 1000)
    assert not stale.parent.exists() and (store.root / scratch.SCRATCH / "2-boot" / "ab" / "new").exists()


def test_recently_used_scratch_file_is_kept(store: Store) -> None:
    store.prepare()
    header = _scratch(store, "2-boot/header.gch", 8 * 86400.0)
    os.utime(header, (time.time(), header.stat().st_mtime))
    eviction.evict(store, 0, 0)
    assert header.exists()


def test_quarantine_is_evicted_oldest_first_within_its_share(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.prepare()
    first, second = store.quarantined / "first", store.quarantined / "second"
    first.mkdir()
    (first / "entry.bin").write_bytes(b"q" * 1000)
    second.write_bytes(b"q" * 1000)
    # On a file system with a coarse clock, both entries have the same time at first.
    while second.lstat().st_ctime <= first.lstat().st_ctime:
        second.chmod(0o600)
    eviction.evict(store, 20_000, 1000)
    assert first.exists() and second.exists()
    eviction.evict(store, 10_000, 1000)
    assert not first.exists() and second.exists()


def test_artifacts_scratch_and_quarantine_share_one_budget(store: Store) -> None:
    keys = [fmt.digest(bytes([number])) for number in range(2)]
    for age, key in zip((200, 100), keys, strict=True):
        use(store.publish(payload(key)), time.time() - age)
    total = sum(file.stat().st_size for file in store.artifacts.rglob("*") if file.is_file())
    assert eviction.evict(store, total, 1000).artifacts == 0
    running = _scratch(store, "running", 0.0, 100 * total)
    assert eviction.evict(store, total, 1000).artifacts == 1, "the share of scratch files, and no more"
    assert [artifact.manifest.key for artifact in store.all_artifacts()] == keys[1:] and running.exists()


def test_eviction_does_not_follow_links(store: Store, tmp_path: Path) -> None:
    store.publish(payload())
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x" * 1000)
    (store.artifacts / "link").symlink_to(outside)
    eviction.evict(store, 0, 0)
    eviction.clear(store)
    assert (outside / "file").exists() and os.listdir(store.artifacts) == []


def test_removal_works_without_tmp(store: Store) -> None:
    store.publish(payload())
    store.tmp.rmdir()
    assert eviction.evict(store, 0, 0).artifacts == 1 and list(store.all_artifacts()) == []


def test_remove_deletes_all_variants_of_a_key_even_untrusted_ones(store: Store) -> None:
    for guards in ("a", "b", "c"):
        store.publish(payload(guards=guards))
    kept = store.publish(payload(OTHER))
    store.publish_failure(failure())
    flip(store.artifacts / f"{KEY}.1" / fmt.MANIFEST, 3)
    (store.artifacts / f"{KEY}.2").chmod(0o777)
    assert eviction.remove(store, KEY).artifacts == 3
    assert os.listdir(store.artifacts) == [kept.path.name]


def test_clear_removes_everything(store: Store) -> None:
    store.publish(payload())
    store.publish_failure(failure(OTHER))
    store.quarantine(store.publish(payload(OTHER)).path, "for a test")
    (store.tmp / "left").write_text("x")
    assert eviction.clear(store).artifacts == 1
    for directory in (store.artifacts, store.tmp, store.quarantined):
        assert os.listdir(directory) == []


@pytest.mark.fault("eviction")
def test_directory_of_a_writer_is_moved_away_before_its_files_are_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the eviction removed files in place, the writer could publish a directory that lacks files."""
    store.prepare()
    written = store.tmp / "written"
    (written / "kernels").mkdir(parents=True)
    remove, seen = shutil.rmtree, []

    def noting(path: Path, **options: object) -> None:
        if path.name != "recipes":  # which clear() removes in place, since no writer publishes that directory
            seen.append(written.exists())
        remove(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(shutil, "rmtree", noting)
    eviction.clear(store)
    assert seen == [False] and not list(store.tmp.iterdir())
