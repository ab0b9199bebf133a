"""Tests of base stores: artifacts are used in place, a base is never written, and a damaged artifact is a miss."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support_store import KEY, LIBRARY, OTHER, payload

from precompiled.core.errors import CorruptArtifact, StoreError, UntrustedStore
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction, package_format
from precompiled.store.artifacts import Artifact, Store
from precompiled.store.packages import PackageStore

FUNCTION = package_format.function_key("program", "f", "0" * 64, one_graph=False)
HEADER = package_format.Header(FUNCTION, "program", "f", "0" * 64, False, "compiled")


class Layered:
    """A base with an artifact and an entry, and a store above it that does not exist yet."""

    def __init__(self, root: Path) -> None:
        self.base = Store(root / "base")
        self.artifact = self.base.publish(payload())
        self.entry = self.base.packages.publish(HEADER, b"{}", b"body")
        self.before = listing(self.base.root)
        self.problems: list[str] = []
        self.store = Store(root / "own", [root / "nowhere", self.base.root], self.problems.append)

    def untouched(self) -> bool:
        return listing(self.base.root) == self.before


def listing(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in sorted(root.rglob("*"))}


@pytest.fixture
def layered(tmp_path: Path) -> Layered:
    return Layered(tmp_path)


def test_artifact_and_entry_of_a_base_are_used_in_place(layered: Layered) -> None:
    store = layered.store
    [found] = store.lookup(KEY)
    assert found == layered.artifact and not store.is_own(found) and found.root == layered.base.root
    assert store.read_files(found) == payload().files
    assert store.packages.names(FUNCTION) == [layered.entry]
    entry = store.packages.read(FUNCTION, layered.entry)
    assert entry.body == b"body" and entry.root == layered.base.root
    assert store.packages.header(FUNCTION, layered.entry) == HEADER
    assert store.keys() == {KEY} and not store.is_empty()
    assert store.lookup(OTHER) == [] and store.packages.names("1" * 64) == []
    assert layered.problems == [] and not store.root.exists()


def test_miss_costs_one_stat_per_base(layered: Layered, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("lstat", "stat", "open", "listdir", "scandir"):
        real = getattr(os, name)

        def counted(path: object, *rest: object, real: object = real, name: str = name, **more: object) -> object:
            if str(path).startswith(str(layered.base.root)):
                calls.append(name)
            return real(path, *rest, **more)  # type: ignore[operator]

        monkeypatch.setattr(os, name, counted)
    assert layered.store.lookup(OTHER) == [] and calls == ["lstat"]
    assert layered.store.packages.names("1" * 64) == [] and calls == ["lstat", "lstat"]


def test_nothing_is_written_to_a_base(layered: Layered) -> None:
    store = layered.store
    [found] = store.lookup(KEY)
    for path in (found.path, layered.base.packages.packages / FUNCTION / layered.entry):
        os.utime(path, (0, 0))
    layered.before = listing(layered.base.root)
    store.touch(found)
    store.packages.touch(store.packages.read(FUNCTION, layered.entry))
    store.set_aside(found, "it does not load")
    assert store.lookup(KEY) == []
    store.packages.refuse(HEADER, "an audit")
    assert store.packages.refused(FUNCTION) == "an audit"
    assert eviction.evict(store, 0, 0).artifacts == 0 and eviction.remove(store, KEY).artifacts == 0
    store.publish(payload(guards="s0 > 2"))
    assert eviction.clear(store).artifacts == 1
    assert layered.untouched()
    assert store.lookup(KEY) == [found]  # clear() also removed the note that set the base's artifact aside


def test_base_adds_only_the_variants_that_the_store_lacks(layered: Layered) -> None:
    layered.base.publish(payload(guards="s0 > 2"))
    own = layered.store.publish(payload())
    found = layered.store.lookup(KEY)
    assert found[0] == own and [item.manifest.guards for item in found] == ["", "s0 > 2"]
    assert [layered.store.is_own(item) for item in found] == [True, False]
    assert sum(1 for _ in layered.store.all_artifacts()) == 3


def test_entries_of_a_base_do_not_count_toward_the_limit_of_the_store(layered: Layered) -> None:
    """A publication may remove old entries of its own store, but never entries of a base."""
    name = layered.store.packages.publish(replace(HEADER, meaning="1"), b"{}", b"own")
    assert layered.store.packages.names(FUNCTION) == [name, layered.entry]
    assert layered.untouched()


@pytest.mark.parametrize("spoil", ["root", "artifacts", "artifact", "manifest"])
def test_base_that_others_could_have_written_is_a_miss_with_a_reason(layered: Layered, spoil: str) -> None:
    path = {
        "root": layered.base.root,
        "artifacts": layered.base.artifacts,
        "artifact": layered.artifact.path,
        "manifest": layered.artifact.path / fmt.MANIFEST,
    }[spoil]
    path.chmod(0o777)
    assert layered.store.lookup(KEY) == []
    [reason] = layered.problems
    assert str(path) in reason and "0777" in reason


def test_a_base_behind_a_link_is_a_miss_with_a_reason(layered: Layered, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(layered.base.root)
    store = Store(tmp_path / "own", [tmp_path / "link"], layered.problems.append)
    assert store.lookup(KEY) == [] and store.packages.names(FUNCTION) == []
    assert len(layered.problems) == 2 and all("symbolic link" in reason for reason in layered.problems)


def test_invalid_manifest_is_a_miss_with_a_reason(layered: Layered) -> None:
    (layered.artifact.path / fmt.MANIFEST).write_bytes(b"{}")
    before = listing(layered.base.root)
    assert layered.store.lookup(KEY) == [] and len(layered.problems) == 1
    assert listing(layered.base.root) == before


@pytest.mark.parametrize("spoil", ["altered", "missing", "writable"])
def test_artifact_whose_file_fails_verification_is_not_used_again(layered: Layered, spoil: str) -> None:
    file = layered.artifact.path / LIBRARY
    if spoil == "altered":
        file.write_bytes(b"\x7fELF" + b"N" * 100)
    elif spoil == "missing":
        file.unlink()
    else:
        file.chmod(0o666)
    before = listing(layered.base.root)
    [found] = layered.store.lookup(KEY)
    with pytest.raises((CorruptArtifact, UntrustedStore)):
        layered.store.read_files(found)
    # Other processes must skip the artifact, too: a worker that finds an artifact compiles nothing, although no client
    # can load this artifact.
    assert Store(layered.store.root, [layered.base.root]).lookup(KEY) == []
    assert listing(layered.base.root) == before
    assert [path.suffix for path in layered.store.quarantined.iterdir()] == [".base"]


def test_entry_of_a_base_that_fails_verification_is_left_in_place(layered: Layered) -> None:
    path = layered.base.packages.packages / FUNCTION / layered.entry
    path.write_bytes(b"other")
    before = listing(layered.base.root)
    with pytest.raises(CorruptArtifact):
        layered.store.packages.read(FUNCTION, layered.entry)
    assert len(layered.problems) == 1 and listing(layered.base.root) == before


def test_entries_of_an_untrusted_base_are_ignored(layered: Layered) -> None:
    own = layered.store.packages.publish(replace(HEADER, meaning="1"), b"{}", b"own")
    (layered.base.packages.packages / FUNCTION).chmod(0o777)
    assert layered.store.packages.names(FUNCTION) == [own] and len(layered.problems) == 1


def test_refusal_in_a_base_applies_to_the_entries_of_that_base(layered: Layered) -> None:
    layered.base.packages.refuse(HEADER, "an audit")
    assert layered.store.packages.names(FUNCTION) == [] and layered.store.packages.refused(FUNCTION) is None


def test_corrupt_artifact_of_the_store_does_not_hide_the_bases(layered: Layered) -> None:
    own = layered.store.publish(payload())
    (own.path / fmt.MANIFEST).write_bytes(b"{}")
    assert layered.store.lookup(KEY) == [layered.artifact]


def test_a_store_that_is_its_own_base_is_read_once(tmp_path: Path) -> None:
    store = Store(tmp_path, [tmp_path])
    published = store.publish(payload())
    assert store.bases == [] and store.lookup(KEY) == [published]


def test_untrusted_store_is_an_error_despite_bases(layered: Layered) -> None:
    layered.store.prepare()
    layered.store.artifacts.chmod(0o777)
    with pytest.raises(StoreError):
        layered.store.lookup(KEY)


def test_path_of_an_artifact_determines_its_store(tmp_path: Path) -> None:
    assert Artifact(tmp_path / "artifacts" / f"{KEY}.3", payload().manifest).root == tmp_path
    assert PackageStore(tmp_path).names(FUNCTION) == []
