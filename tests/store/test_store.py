"""Tests of the store: a published artifact can be read completely, and incomplete data is never served."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support_store import KEY, LIBRARY, OTHER, failure, flip, payload, quarantined, use

from precompiled.core.errors import CorruptArtifact, PrecompiledError, StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction, trust
from precompiled.store.artifacts import Store
from precompiled.store.last_use import TOUCH_INTERVAL_S

# ---------------------------------------------------------------- lookup


def test_nothing_is_created_by_reading(store: Store) -> None:
    assert store.lookup(KEY) == []
    assert store.failure(KEY) is None
    assert list(store.all_artifacts()) == [] and list(store.failures()) == []
    assert eviction.clear(store).artifacts == 0 and eviction.evict(store, 0, 0).artifacts == 0
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
    assert store.lookup(KEY) == [] and len(quarantined(store)) == 1
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


def test_untuned_artifacts_are_listed_last(tmp_path: Path) -> None:
    base = Store(tmp_path / "base")
    base.publish(payload())
    store = Store(tmp_path / "store", [base.root])
    store.publish(payload(tier=fmt.UNTIMED))
    store.publish(payload(guards="s0 > 0"))
    found = [(artifact.manifest.tier, artifact.root == base.root) for artifact in store.lookup(KEY)]
    assert found == [(fmt.DEFAULT, False), (fmt.DEFAULT, True), (fmt.UNTIMED, False)]
    assert fmt.PROGRAM not in fmt.names_for_others(store.lookup(KEY)[1].manifest)


@pytest.mark.reason("bad-key")
@pytest.mark.parametrize("key", ["", "abc", "../" + "a" * 61, "A" * 64, KEY + "\n", KEY + ".0/../x"])
def test_only_keys_become_file_names(store: Store, key: str) -> None:
    outside = store.root.parent / "x.failed"
    outside.write_text("keep")
    sent = payload()
    bad = dataclasses.replace(sent, manifest=dataclasses.replace(sent.manifest, key=key))
    calls = [
        lambda: store.lookup(key),
        lambda: store.failure(key),
        lambda: eviction.remove(store, key),
        lambda: store.forget_failure(key),
        lambda: store.publish(bad),
        lambda: store.publish_failure(failure(key)),
    ]
    for call in calls:
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.code == "bad-key"
    assert outside.read_text() == "keep" and not store.root.exists()


# ---------------------------------------------------------------- damage


def _refused(store: Store) -> None:
    """Check that the artifact of KEY is not served, is quarantined with a reason, and can be published again."""
    artifacts = store.lookup(KEY)
    for artifact in artifacts:
        with pytest.raises(CorruptArtifact):
            store.read_files(artifact)
    assert store.lookup(KEY) == []
    [name] = quarantined(store)
    assert (store.quarantined / f"{name}.reason").read_text().strip()
    artifact = store.publish(payload())
    assert artifact.slot == 0 and store.read_files(artifact) == payload().files


@pytest.mark.fault("altered-bytes")
@pytest.mark.parametrize("file", [fmt.MANIFEST, fmt.BUNDLE, LIBRARY])
@pytest.mark.parametrize("position", [0, 50, -1])
def test_a_flipped_bit_is_refused(store: Store, file: str, position: int) -> None:
    flip(store.publish(payload()).path / file, position)
    _refused(store)


@pytest.mark.fault("damaged-files")
@pytest.mark.parametrize("file", [fmt.MANIFEST, fmt.BUNDLE, LIBRARY])
@pytest.mark.parametrize("length", [0, 1, 99])
def test_a_truncated_file_is_refused(store: Store, file: str, length: int) -> None:
    os.truncate(store.publish(payload()).path / file, length)
    _refused(store)


@pytest.mark.fault("damaged-files")
@pytest.mark.parametrize("file", [fmt.MANIFEST, fmt.BUNDLE, LIBRARY])
def test_an_appended_file_is_refused(store: Store, file: str) -> None:
    with open(store.publish(payload()).path / file, "ab") as appended:
        appended.write(b"\0")
    _refused(store)


@pytest.mark.fault("damaged-files")
@pytest.mark.parametrize("file", [fmt.MANIFEST, fmt.BUNDLE, LIBRARY, "native"])
def test_a_missing_file_is_refused(store: Store, file: str) -> None:
    path = store.publish(payload()).path / file
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    _refused(store)


@pytest.mark.fault("altered-bytes")
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


@pytest.mark.fault("damaged-files")
def test_an_artifact_under_another_key_is_refused(store: Store) -> None:
    store.publish(payload(OTHER))
    os.rename(store.artifacts / f"{OTHER}.0", store.artifacts / f"{KEY}.0")
    assert store.lookup(KEY) == [] and len(quarantined(store)) == 1


def test_one_corrupt_variant_does_not_hide_the_others(store: Store) -> None:
    for guards in ("a", "b", "c"):
        store.publish(payload(guards=guards))
    flip(store.artifacts / f"{KEY}.1" / fmt.MANIFEST, 10)
    assert [artifact.manifest.guards for artifact in store.lookup(KEY)] == ["a", "c"]


@pytest.mark.fault("damaged-files")
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
    assert path.exists() and record.exists() and quarantined(store) == []
    assert store.publish(payload()).slot == 1


def test_quarantine_works_without_its_directory(store: Store) -> None:
    flip(store.publish(payload()).path / fmt.MANIFEST, 5)
    store.quarantined.rmdir()
    _refused(store)


def test_a_stale_handle_is_a_miss(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS reports ESTALE for files that another host has removed, even during a read."""
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
    eviction.remove(store, KEY)
    with pytest.raises(FileNotFoundError):
        store.read_files(artifact)


def test_artifact_replaced_between_lookup_and_read_is_a_miss(store: Store) -> None:
    old = store.publish(payload(size=100))
    eviction.remove(store, KEY)
    new = store.publish(payload(size=200))
    assert new.path == old.path
    with pytest.raises(FileNotFoundError):
        store.read_files(old)
    assert store.lookup(KEY) == [new] and quarantined(store) == []


# ---------------------------------------------------------------- failure records


def test_a_failure_counts_until_its_time_to_live(store: Store) -> None:
    record = failure(created=1000.0, ttl_s=60.0)
    store.publish_failure(record)
    assert store.failure(KEY, now=1000.0) == record == store.failure(KEY, now=1059.0)
    assert store.failure(KEY, now=1060.0) is None
    assert store.failure(KEY, now=900.0) is None  # the clock was set back after the record was written
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
    assert not record.exists() and len(quarantined(store)) == 1


def test_touch_of_a_recently_used_artifact_writes_nothing(store: Store) -> None:
    artifact = store.publish(payload())
    recent = time.time() - TOUCH_INTERVAL_S / 2
    use(artifact, recent)
    store.touch(artifact)
    assert artifact.path.stat().st_mtime == pytest.approx(recent)


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
            assert list(store.all_artifacts()) == [] and eviction.evict(store, 0, 0).artifacts == 0
        except BaseException:
            code = 3
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


# ---------------------------------------------------------------- calls of the file system that fail


@pytest.mark.fault("failing-calls")
@pytest.mark.parametrize("operation", ["lookup", "evict", "publish", "names"])
def test_failure_of_any_system_call_is_a_store_error(
    store: Store, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Let the n-th system call fail, for each n. Only a StoreError or FileNotFoundError may be raised, and existing
    artifacts must stay valid.
    """
    other = payload(OTHER)
    steps = {
        "lookup": lambda: [store.read_files(found) for found in store.lookup(KEY)],
        "evict": lambda: eviction.evict(store, 1 << 40, 10**6),
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
        eviction.remove(store, OTHER)
    assert fails_at > 3 and quarantined(store) == []


@pytest.mark.fault("clocks")
def test_touch_corrects_a_time_in_the_future(store: Store) -> None:
    artifact = store.publish(payload())
    use(artifact, time.time() + 365 * 86400)
    store.touch(artifact)
    assert artifact.path.stat().st_mtime < time.time() + 60


def test_program_above_the_size_limit_is_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmt, "MAX_PROGRAM_BYTES", 1000)
    assert fmt.unpack_program(fmt.pack_program(bytes(1000))) == bytes(1000)
    with pytest.raises(CorruptArtifact):
        fmt.unpack_program(fmt.pack_program(bytes(1001)))
    with pytest.raises(CorruptArtifact):  # the size in its trailer claims 10 bytes
        fmt.unpack_program(fmt.pack_program(bytes(1001))[:-4] + (10).to_bytes(4, "little"))
    assert fmt.unpack_program(fmt.pack_program(b"")) == b""
