"""Tests that files with a wrong length, place or format are not served."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support_altered import FILES, RECORD, AlteredStore, open_record
from support_remote import FUNCTION, HEADER
from support_store import KEY, OTHER, payload, quarantined

from precompiled.core.errors import CorruptArtifact
from precompiled.packages import portable_format
from precompiled.remote import envelope
from precompiled.remote.envelope import ObjectRejected
from precompiled.store import artifact_format as fmt
from precompiled.store import package_format
from precompiled.store.artifacts import Store

NAMES = ["manifest", "bundle", "library", "program", "entry"]
# Formats that no version of this project writes, or that this version does not read.
FORMATS = [0, 1, 2, fmt.FORMAT + 1, 99, -1, 3.5, True, "3", "", None, [], {}, 10**30, float("inf")]


@pytest.mark.fault("damaged-files")
@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_every_other_length_is_refused(tmp_path: Path, file: str, tries: Callable[[int, int], int]) -> None:
    altered = AlteredStore(tmp_path / "store")
    path = altered.paths[file]
    data = path.read_bytes()
    every = max(1, len(data) // tries(15, len(data)))
    for length in range(0, len(data), every):
        path.write_bytes(data[:length])
        altered.assert_refused(file, f"{file}, cut to {length} bytes,")
        altered.put_back(file, data)
    for more in (b"\0", b"\n", b" ", b"x" * 4096, data):
        path.write_bytes(data + more)
        altered.assert_refused(file, f"{file}, with {more[:10]!r} appended,")
        altered.put_back(file, data)
    assert altered.read(file) == altered.whole(file)


@pytest.mark.fault("damaged-files")
@pytest.mark.parametrize("file", FILES[:4], ids=NAMES[:4])
def test_file_of_another_artifact_is_refused(tmp_path: Path, file: str) -> None:
    """Replaces each file by each other file of its artifact, and by the file with the same name in a second
    artifact.
    """
    altered = AlteredStore(tmp_path / "store")
    data = altered.paths[file].read_bytes()
    program = altered.other / fmt.PROGRAM
    program.write_bytes(fmt.pack_program(b"another program"))
    others = [altered.paths[other] for other in FILES if other != file]
    for other in [*others, altered.other / file]:
        if other.read_bytes() != data:
            altered.paths[file].write_bytes(other.read_bytes())
            altered.assert_refused(file, f"{file}, replaced by {other.name},")
            altered.put_back(file, data)
    assert altered.read(file) == altered.whole(file)


@pytest.mark.fault("damaged-files")
def test_artifact_under_another_key_or_name_is_not_served(tmp_path: Path) -> None:
    altered = AlteredStore(tmp_path / "store")
    store, artifacts = altered.store, altered.store.artifacts
    for name in (f"{KEY}.1", f"{KEY}.16", f"{KEY}.-1", f"{KEY}.x", KEY, f"{KEY}.0.0"):
        shutil.copytree(altered.other, artifacts / name)
    shutil.copytree(altered.other, artifacts / "copy")
    assert [artifact.path.name for artifact in store.lookup(KEY)] == [f"{KEY}.0"]
    assert len(quarantined(store)) == 1, "the copy in a slot of the key"
    for artifact in store.all_artifacts():
        assert artifact.path.name in (f"{KEY}.0", f"{OTHER}.0")
    # An entry is refused if it is in the folder of a different function, or if its file has a wrong digest as its name.
    entries = store.packages.packages / FUNCTION
    shutil.copytree(entries, store.packages.packages / ("ab" * 32))
    shutil.copy(entries / altered.entry, entries / f"{'cd' * 32}.entry")
    for function, name in (("ab" * 32, altered.entry), (FUNCTION, f"{'cd' * 32}.entry")):
        with pytest.raises(CorruptArtifact):
            store.packages.read(function, name)
    assert [entry.body for entry in store.packages.entries()] == [altered.body]


@pytest.mark.fault("damaged-files")
@pytest.mark.parametrize("value", FORMATS, ids=repr)
def test_other_format_is_a_miss(store: Store, value: Any) -> None:
    """Each file has a valid digest."""
    artifact = store.publish(payload())
    manifest = dataclasses.replace(artifact.manifest, format=value)
    (artifact.path / fmt.MANIFEST).write_bytes(fmt.seal(manifest))
    assert store.lookup(KEY) == [] and list(store.all_artifacts()) == []
    assert open_record(store, json.dumps({**json.loads(RECORD), "format": value}).encode()) is None
    assert store.publish(payload()).slot in (0, 1)

    entry = store.packages.publish(dataclasses.replace(HEADER, format=value), b"{}", b"body")
    with pytest.raises(CorruptArtifact) as caught:
        store.packages.read(FUNCTION, entry)
    assert caught.value.code in ("package-format", "package-corrupt")
    assert store.packages.header(FUNCTION, entry) is None if entry in store.packages.names(FUNCTION) else True
    assert list(store.packages.entries()) == []

    line = json.dumps({"format": value, "kind": "artifact", "size": 1}).encode() + b"\n"
    with pytest.raises(ObjectRejected):
        envelope.open_envelope(line)
    with pytest.raises(portable_format.PackageError):
        portable_format._open_index(json.dumps({"format": value, "digest": "x"}).encode(), Path("net.package"))


@pytest.mark.fault("damaged-files")
@pytest.mark.parametrize("version", range(1, package_format.FORMAT))
def test_entry_of_an_earlier_format_is_kept_and_not_read(store: Store, version: int) -> None:
    entry = store.packages.publish(dataclasses.replace(HEADER, format=version), b"{}", b"body")
    with pytest.raises(CorruptArtifact) as caught:
        store.packages.read(FUNCTION, entry)
    assert caught.value.code == "package-format" and store.packages.names(FUNCTION) == [entry]


@pytest.mark.fault("damaged-files")
def test_failure_record_of_any_length_raises_nothing(store: Store) -> None:
    store.prepare()
    for length in range(len(RECORD)):
        assert open_record(store, RECORD[:length]) is None
    for more in (b"{}", b"\0", b"x"):
        assert open_record(store, RECORD + more) is None
    assert open_record(store, RECORD)


ODD = [None, True, -1, 1.5, 10**400, "", "x", [], [1], {}, {"a": 1}]


@pytest.mark.fault("damaged-files")
@pytest.mark.parametrize("name", [item.name for item in dataclasses.fields(fmt.Failure)])
def test_failure_record_with_an_odd_field_raises_nothing(store: Store, name: str) -> None:
    store.prepare()
    for value in ODD:
        found = open_record(store, json.dumps({**json.loads(RECORD), name: value}).encode())
        if found is not None:
            assert found.key == KEY
            try:
                fmt.program_of_failure(found)
            except CorruptArtifact:
                pass
        assert all(item.key == KEY for item in store.failures())
