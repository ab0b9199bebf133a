"""Tests of the store: a published artifact can be read completely, and incomplete data is never served."""

from __future__ import annotations

import dataclasses
import errno
import multiprocessing
import os
import shutil
import signal
import stat
import time
from contextlib import suppress
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from support_store import KEY, LIBRARY, OTHER, failure, payload

from precompiled.core.errors import CorruptArtifact, PrecompiledError, StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import artifacts as store_module
from precompiled.store import scratch, trust
from precompiled.store.artifacts import Artifact, Store

spawn = multiprocessing.get_context("spawn")


# ---------------------------------------------------------------- publish and lookup


def test_nothing_is_created_by_reading(store: Store) -> None:
    assert store.lookup(KEY) == []
    assert store.failure(KEY) is None
    assert list(store.all_artifacts()) == [] and list(store.failures()) == []
    assert store.clear().artifacts == 0 and store.evict(0, 0).artifacts == 0
    assert not store.root.exists()


def test_published_artifact_is_found_and_read_whole(store: Store) -> None:
    sent = payload()
    published = store.publish(sent)
    [found] = store.lookup(KEY)
    assert found == published and found.slot == 0
    assert store.read_files(found) == sent.files
    assert found.manifest.bytes == sum(map(len, sent.files.values()))
    assert store.lookup(OTHER) == []
    assert [artifact.path.name for artifact in store.all_artifacts()] == [f"{KEY}.0"]
    assert os.listdir(store.tmp) == []


def _with_program(program: bytes = b'{"graph":[]}') -> fmt.Payload:
    plain = payload()
    return fmt.Payload(plain.manifest, {**plain.files, fmt.PROGRAM: fmt.pack_program(program)})


def test_program_is_stored_and_not_read_by_a_load(store: Store) -> None:
    artifact = store.publish(_with_program())
    assert store.read_program(artifact) == b'{"graph":[]}'
    (artifact.path / fmt.PROGRAM).write_bytes(b"spoiled")
    assert store.read_files(artifact) == payload().files and store.lookup(KEY) == [artifact]
    with pytest.raises(CorruptArtifact):
        store.read_program(artifact)
    assert store.lookup(KEY) == [] and len(_quarantined(store)) == 1
    assert store.read_program(store.publish(payload())) is None


def test_program_that_cannot_be_unpacked_is_corrupt() -> None:
    packed = fmt.pack_program(b"graph" * 100)
    for data in (b"graph", packed[:-4], packed[:20], packed[:12] + b"\xff" * 20):
        with pytest.raises(CorruptArtifact):
            fmt.unpack_program(data)


def test_a_failure_record_keeps_its_program(store: Store) -> None:
    record = dataclasses.replace(failure(), program=fmt.program_for_failure(b"graph"))
    store.publish_failure(record)
    found = store.failure(KEY)
    assert found == record and fmt.program_of_failure(record) == b"graph"
    assert fmt.program_of_failure(failure()) is None
    assert fmt.program_for_failure(os.urandom(fmt.MAX_FAILURE_PROGRAM_BYTES)) == ""
    for program in ("???", "Z3JhcGg=", 7, ["x"]):
        with pytest.raises(CorruptArtifact):
            fmt.program_of_failure(dataclasses.replace(record, program=program))


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
        (0, "s0 > 0"), (1, "s0 > 1"), (2, "s0 > 2"), (3, "s0 > 0"),
    ]  # fmt: skip


def test_untuned_artifacts_are_listed_last(tmp_path: Path) -> None:
    base = Store(tmp_path / "base")
    base.publish(payload())
    store = Store(tmp_path / "store", [base.root])
    store.publish(payload(tier=fmt.UNTIMED))
    store.publish(payload(guards="s0 > 0"))
    found = [(artifact.manifest.tier, artifact.root == base.root) for artifact in store.lookup(KEY)]
    assert found == [(fmt.DEFAULT, False), (fmt.DEFAULT, True), (fmt.UNTIMED, False)]
    assert fmt.PROGRAM not in fmt.names_for_others(store.lookup(KEY)[1].manifest)


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


@pytest.mark.reason("bad-key")
@pytest.mark.parametrize("key", ["", "abc", "../" + "a" * 61, "A" * 64, KEY + "\n", KEY + ".0/../x"])
def test_only_keys_become_file_names(store: Store, key: str) -> None:
    outside = store.root.parent / "x.failed"
    outside.write_text("keep")
    sent = payload()
    bad = dataclasses.replace(sent, manifest=dataclasses.replace(sent.manifest, key=key))
    calls = [
        lambda: store.lookup(key), lambda: store.failure(key), lambda: store.remove(key),
        lambda: store.forget_failure(key), lambda: store.publish(bad), lambda: store.publish_failure(failure(key)),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.code == "bad-key"
    assert outside.read_text() == "keep" and not store.root.exists()


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


@pytest.mark.reason("store-unwritable")
def test_no_space_is_a_store_error_and_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", full)
    for publish in (lambda: store.publish(payload()), lambda: store.publish_failure(failure())):
        with pytest.raises(StoreError) as caught:
            publish()
        assert caught.value.code == "store-unwritable"
    assert os.listdir(store.tmp) == [] and os.listdir(store.artifacts) == []


# ---------------------------------------------------------------- damage


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x04
    path.write_bytes(data)


def _quarantined(store: Store) -> list[str]:
    return [name for name in os.listdir(store.quarantined) if not name.endswith(".reason")]


def _refused(store: Store) -> None:
    """Check that the artifact of KEY is not served, is quarantined with a reason, and can be published again."""
    artifacts = store.lookup(KEY)
    for artifact in artifacts:
        with pytest.raises(CorruptArtifact):
            store.read_files(artifact)
    assert store.lookup(KEY) == []
    [name] = _quarantined(store)
    assert (store.quarantined / f"{name}.reason").read_text().strip()
    artifact = store.publish(payload())
    assert artifact.slot == 0 and store.read_files(artifact) == payload().files


@pytest.mark.parametrize("file", [fmt.MANIFEST, fmt.BUNDLE, LIBRARY])
@pytest.mark.parametrize("position", [0, 50, -1])
def test_a_flipped_bit_is_refused(store: Store, file: str, position: int) -> None:
    _flip(store.publish(payload()).path / file, position)
    _refused(store)


@pytest.mark.parametrize("file", [fmt.MANIFEST, fmt.BUNDLE, LIBRARY])
@pytest.mark.parametrize("length", [0, 1, 99])
def test_a_truncated_file_is_refused(store: Store, file: str, length: int) -> None:
    os.truncate(store.publish(payload()).path / file, length)
    _refused(store)


@pytest.mark.parametrize("file", [fmt.MANIFEST, fmt.BUNDLE, LIBRARY])
def test_an_appended_file_is_refused(store: Store, file: str) -> None:
    with open(store.publish(payload()).path / file, "ab") as appended:
        appended.write(b"\0")
    _refused(store)


@pytest.mark.parametrize("file", [fmt.MANIFEST, fmt.BUNDLE, LIBRARY, "native"])
def test_a_missing_file_is_refused(store: Store, file: str) -> None:
    path = store.publish(payload()).path / file
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    _refused(store)


def test_no_flipped_bit_of_a_manifest_passes(store: Store) -> None:
    sealed = (store.publish(payload()).path / fmt.MANIFEST).read_bytes()
    for position in range(len(sealed)):
        for bit in range(8):
            flipped = bytearray(sealed)
            flipped[position] ^= 1 << bit
            with pytest.raises(CorruptArtifact):
                fmt.open_manifest(bytes(flipped), KEY)


MINE = b'{"format":%d,"key":"x"}' % fmt.FORMAT


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b"\xff\xfe", MINE[:-9] + b"}", MINE.replace(b'"x"', b"[]"), b"[" * 100_000],
)
def test_invalid_manifest_is_corrupt(data: bytes) -> None:
    for reader in (fmt.open_manifest, fmt.open_failure):
        with pytest.raises(CorruptArtifact):
            reader(data, KEY)


@pytest.mark.parametrize("value", ['"x"', "[]", "{}", "1", "null", "[" * 400 + "]" * 400])
@pytest.mark.parametrize("name", ["files", "components", "created", "digest"])
def test_manifest_with_a_field_of_the_wrong_type_is_corrupt(name: str, value: str) -> None:
    sealed = fmt.seal(dataclasses.replace(payload().manifest, files={fmt.BUNDLE: fmt.FileRecord(1, "0")}))
    import json

    fields = {key: json.dumps(item) for key, item in json.loads(sealed).items()} | {name: value}
    with pytest.raises(CorruptArtifact):
        fmt.open_manifest(("{" + ",".join(f'"{key}":{item}' for key, item in fields.items()) + "}").encode(), KEY)


def test_an_artifact_under_another_key_is_refused(store: Store) -> None:
    store.publish(payload(OTHER))
    os.rename(store.artifacts / f"{OTHER}.0", store.artifacts / f"{KEY}.0")
    assert store.lookup(KEY) == [] and len(_quarantined(store)) == 1


def test_one_corrupt_variant_does_not_hide_the_others(store: Store) -> None:
    for guards in ("a", "b", "c"):
        store.publish(payload(guards=guards))
    _flip(store.artifacts / f"{KEY}.1" / fmt.MANIFEST, 10)
    assert [artifact.manifest.guards for artifact in store.lookup(KEY)] == ["a", "c"]


@pytest.mark.reason("artifact-format")
def test_artifact_of_another_format_is_a_miss_and_is_kept(store: Store) -> None:
    path = store.publish(payload()).path / fmt.MANIFEST
    mine, other = (b'"format":%d' % version for version in (fmt.FORMAT, fmt.FORMAT + 1))
    path.write_bytes(path.read_bytes().replace(mine, other))
    record = store.artifacts / f"{KEY}.failed"
    record.write_bytes(fmt.encode_failure(failure()).replace(mine, other))
    with pytest.raises(CorruptArtifact) as caught:
        fmt.open_manifest(path.read_bytes(), KEY)
    assert caught.value.code == "artifact-format" and f"this is format {fmt.FORMAT}" in caught.value.message
    assert store.lookup(KEY) == [] and store.failure(KEY) is None
    assert path.exists() and record.exists() and _quarantined(store) == []
    assert store.publish(payload()).slot == 1


def test_quarantine_works_without_its_directory(store: Store) -> None:
    _flip(store.publish(payload()).path / fmt.MANIFEST, 5)
    store.quarantined.rmdir()
    _refused(store)


def test_a_stale_handle_is_a_miss(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS reports this for files that another host has removed, even during a read."""
    artifact = store.publish(payload())

    def stale(*_: object, **__: object) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(trust, "read_file", stale)
    assert store.lookup(KEY) == [] and store.failure(KEY) is None
    with pytest.raises(FileNotFoundError):
        store.read_files(artifact)
    monkeypatch.undo()
    assert store.lookup(KEY) == [artifact], "nothing was put into quarantine"


def test_artifact_evicted_between_lookup_and_read_is_a_miss(store: Store) -> None:
    [artifact] = [store.publish(payload())]
    store.remove(KEY)
    with pytest.raises(FileNotFoundError):
        store.read_files(artifact)


def test_artifact_replaced_between_lookup_and_read_is_a_miss(store: Store) -> None:
    old = store.publish(payload(size=100))
    store.remove(KEY)
    new = store.publish(payload(size=200))
    assert new.path == old.path
    with pytest.raises(FileNotFoundError):
        store.read_files(old)
    assert store.lookup(KEY) == [new] and _quarantined(store) == []


# ---------------------------------------------------------------- failure records


def test_a_failure_counts_until_its_time_to_live(store: Store) -> None:
    record = failure(created=1000.0, ttl_s=60.0)
    store.publish_failure(record)
    assert store.failure(KEY, now=1000.0) == record == store.failure(KEY, now=1059.0)
    assert store.failure(KEY, now=1060.0) is None
    assert store.failure(KEY, now=900.0) is None  # the clock was set back
    assert store.failure(OTHER) is None


def test_newer_failure_replaces_an_older_and_an_artifact_removes_it(store: Store) -> None:
    store.publish_failure(failure())
    newer = dataclasses.replace(failure(), reason="timed-out")
    store.publish_failure(newer)
    assert store.failure(KEY) == newer and [item.reason for item in store.failures()] == ["timed-out"]
    store.publish(payload())
    assert store.failure(KEY) is None and list(store.failures()) == []


@pytest.mark.parametrize("data", [b"", b"{}", b"nonsense", MINE])
def test_a_corrupt_failure_record_goes_into_quarantine(store: Store, data: bytes) -> None:
    store.prepare()
    record = store.artifacts / f"{KEY}.failed"
    record.write_bytes(data)
    record.chmod(0o600)
    assert store.failure(KEY) is None
    assert not record.exists() and len(_quarantined(store)) == 1


# ---------------------------------------------------------------- eviction and removal


def _use(artifact: Artifact, when: float) -> None:
    os.utime(artifact.path, (when, when))


def test_eviction_removes_the_least_recently_used_artifacts(store: Store) -> None:
    keys = [fmt.digest(bytes([number])) for number in range(4)]
    artifacts = [store.publish(payload(key)) for key in keys]
    for artifact, age in zip(artifacts, (10, 400, 200, 300), strict=True):
        _use(artifact, time.time() - age)
    store.touch(artifacts[1])  # used now: the oldest becomes the youngest
    total = sum(file.stat().st_size for file in store.artifacts.rglob("*") if file.is_file())
    removed = store.evict(total // 2 + 10, 1000)
    assert removed.artifacts == 2 and removed.bytes > 400
    assert {artifact.manifest.key for artifact in store.all_artifacts()} == {keys[0], keys[1]}
    assert os.listdir(store.tmp) == []
    assert store.evict(total, 1000).artifacts == 0


def test_eviction_by_inodes(store: Store) -> None:
    first, second = store.publish(payload(KEY)), store.publish(payload(OTHER))
    _use(first, time.time() - 100)
    assert store.evict(1 << 40, 7).artifacts == 1
    assert list(store.all_artifacts()) == [second]


def test_touch_of_a_recently_used_artifact_writes_nothing(store: Store) -> None:
    artifact = store.publish(payload())
    recent = time.time() - store_module.TOUCH_INTERVAL_S / 2
    _use(artifact, recent)
    store.touch(artifact)
    assert artifact.path.stat().st_mtime == pytest.approx(recent)


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
    assert store.evict(1 << 40, 1000).artifacts == 0
    assert len(os.listdir(store.tmp)) == 2 and os.listdir(store.quarantined) == ["old"]
    assert {item.key for item in store.failures()} == {OTHER}
    assert not (store.artifacts / f"{expired}.failed").exists()

    later = time.time() + store_module.QUARANTINE_MAX_AGE_S + 10
    monkeypatch.setattr(store_module.time, "time", lambda: later)
    store.evict(1 << 40, 1000)
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
    store.evict(1 << 40, 1000)
    assert not stale.exists() and oldest.exists(), "with room to spare, age alone decides"
    store.evict(8000, 1000)
    assert not oldest.exists() and older.exists() and newer.exists()
    running = _scratch(store, "c/running", 0.0, 10_000)
    store.evict(0, 0)
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
    store.evict(1 << 40, 1000)
    assert not stale.parent.exists() and (store.root / scratch.SCRATCH / "2-boot" / "ab" / "new").exists()


def test_recently_used_scratch_file_is_kept(store: Store) -> None:
    store.prepare()
    header = _scratch(store, "2-boot/header.gch", 8 * 86400.0)
    os.utime(header, (time.time(), header.stat().st_mtime))
    store.evict(0, 0)
    assert header.exists()


def test_quarantine_is_evicted_oldest_first_within_its_share(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.prepare()
    first, second = store.quarantined / "first", store.quarantined / "second"
    first.mkdir()
    (first / "entry.bin").write_bytes(b"q" * 1000)
    second.write_bytes(b"q" * 1000)
    while second.lstat().st_ctime <= first.lstat().st_ctime:  # the file system's clock may be coarse
        second.chmod(0o600)
    store.evict(20_000, 1000)
    assert first.exists() and second.exists()
    store.evict(10_000, 1000)
    assert not first.exists() and second.exists()


def test_artifacts_scratch_and_quarantine_share_one_budget(store: Store) -> None:
    keys = [fmt.digest(bytes([number])) for number in range(2)]
    for age, key in zip((200, 100), keys, strict=True):
        _use(store.publish(payload(key)), time.time() - age)
    total = sum(file.stat().st_size for file in store.artifacts.rglob("*") if file.is_file())
    assert store.evict(total, 1000).artifacts == 0
    running = _scratch(store, "running", 0.0, 100 * total)
    assert store.evict(total, 1000).artifacts == 1, "its share is taken from the artifacts, but no more than that"
    assert [artifact.manifest.key for artifact in store.all_artifacts()] == keys[1:] and running.exists()


def test_eviction_does_not_follow_links(store: Store, tmp_path: Path) -> None:
    store.publish(payload())
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x" * 1000)
    (store.artifacts / "link").symlink_to(outside)
    store.evict(0, 0)
    store.clear()
    assert (outside / "file").exists() and os.listdir(store.artifacts) == []


def test_removal_works_without_tmp(store: Store) -> None:
    store.publish(payload())
    store.tmp.rmdir()
    assert store.evict(0, 0).artifacts == 1 and list(store.all_artifacts()) == []


def test_remove_deletes_all_variants_of_a_key_even_untrusted_ones(store: Store) -> None:
    for guards in ("a", "b", "c"):
        store.publish(payload(guards=guards))
    kept = store.publish(payload(OTHER))
    store.publish_failure(failure())
    _flip(store.artifacts / f"{KEY}.1" / fmt.MANIFEST, 3)
    (store.artifacts / f"{KEY}.2").chmod(0o777)
    assert store.remove(KEY).artifacts == 3
    assert os.listdir(store.artifacts) == [kept.path.name]


def test_clear_removes_everything(store: Store) -> None:
    store.publish(payload())
    store.publish_failure(failure(OTHER))
    store.quarantine(store.publish(payload(OTHER)).path, "for a test")
    (store.tmp / "left").write_text("x")
    assert store.clear().artifacts == 1
    for directory in (store.artifacts, store.tmp, store.quarantined):
        assert os.listdir(directory) == []


# ---------------------------------------------------------------- many processes, and dying ones


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
        store.evict(0, 0)


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
    assert _quarantined(store) == [] and reads > 0


STEPS = ("open", "mkdir", "fsync", "rename", "replace", "close", "unlink")


def _publish_and_die(store: Store, step: int) -> None:
    """Publish over an earlier failure record, and SIGKILL this process just before system call number `step`."""
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
            later = time.time() + store_module.TMP_MAX_AGE_S + 10
            patched.setattr(store_module.time, "time", lambda later=later: later)
            store.evict(1 << 40, 1000)
        assert os.listdir(store.tmp) == []

        outcomes.add(bool(artifacts))
        if os.WIFEXITED(status):
            break
        step += 1
    assert step > 15 and outcomes == {True, False}


@pytest.mark.reason("store-unreadable")
def test_an_unreadable_store_is_a_store_error_for_another_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    store = Store(tmp_path / "store")
    store.publish(payload())
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            code = 0
            for call, expected in (
                (lambda: store.lookup(KEY), "store-unreadable"),
                (lambda: store.failure(KEY), "store-unreadable"),
                (lambda: store.publish(payload()), "store-unwritable"),
            ):
                try:
                    call()
                    code = 1
                except PrecompiledError as error:
                    if error.code != expected or not error.action:
                        code = 2
            assert list(store.all_artifacts()) == [] and store.evict(0, 0).artifacts == 0
        except BaseException:
            code = 3
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


# ---------------------------------------------------------------- calls of the file system that fail


@pytest.mark.parametrize("operation", ["lookup", "evict", "publish", "names"])
def test_failure_of_any_system_call_is_a_store_error(
    store: Store, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """For each n, the n-th call below the store fails: only a StoreError is raised, and existing data stays valid."""
    other = payload(OTHER)
    steps = {
        "lookup": lambda: [store.read_files(found) for found in store.lookup(KEY)],
        "evict": lambda: store.evict(1 << 40, 10**6),
        "publish": lambda: store.publish(other),
        "names": lambda: (store.keys(), store.is_empty(), list(store.failures())),
    }
    calls = 0
    fails_at = 0

    def failing(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments, **named)

        return call

    store.publish(payload())
    while calls >= fails_at:
        fails_at, calls = fails_at + 1, 0
        with monkeypatch.context() as patch:
            for name in ("open", "stat", "lstat", "fstat", "listdir", "scandir", "mkdir", "rename", "unlink", "fsync"):
                patch.setattr(os, name, failing(getattr(os, name)))
            with suppress(StoreError, FileNotFoundError):
                steps[operation]()
        assert [store.read_files(found) for found in store.lookup(KEY)] == [payload().files], fails_at
        store.remove(OTHER)
    assert fails_at > 3 and _quarantined(store) == []


def test_concurrent_clear_does_not_break_a_writer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, cleared = os.rename, []

    def clear_first(source: Any, target: Any) -> None:
        if not cleared:
            cleared.append(1)
            store.clear()
        rename(source, target)

    monkeypatch.setattr(os, "rename", clear_first)
    assert store.read_files(store.publish(payload())) == payload().files


def test_touch_corrects_a_time_in_the_future(store: Store) -> None:
    artifact = store.publish(payload())
    _use(artifact, time.time() + 365 * 86400)
    store.touch(artifact)
    assert artifact.path.stat().st_mtime < time.time() + 60


def test_program_above_the_size_limit_is_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmt, "MAX_PROGRAM_BYTES", 1000)
    assert fmt.unpack_program(fmt.pack_program(bytes(1000))) == bytes(1000)
    with pytest.raises(CorruptArtifact):
        fmt.unpack_program(fmt.pack_program(bytes(1001)))
    with pytest.raises(CorruptArtifact):  # its header claims 10 bytes
        fmt.unpack_program(fmt.pack_program(bytes(1001))[:-4] + (10).to_bytes(4, "little"))
    assert fmt.unpack_program(fmt.pack_program(b"")) == b""
