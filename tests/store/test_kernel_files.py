"""Tests which files with kernels a worker gets from the user's store."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from support_store import flip, payload, quarantined, use

from precompiled.store import artifact_format as fmt
from precompiled.store import eviction
from precompiled.store.artifacts import Artifact, Store
from precompiled.store.kernel_files import MAX_ARTIFACTS, KernelFiles
from precompiled.version import VERSION

COMPONENTS = {"environment": "g++ 12", "configs": "defaults"}
ABOUT = {"version": VERSION}


def publish(
    store: Store, *files: str, components: Mapping[str, str] = COMPONENTS, about: Mapping[str, str] = ABOUT
) -> Artifact:
    """Publish an artifact with these files. Each letter in a file's text stands for a kernel."""
    plain = payload(hashlib.sha256(os.urandom(8)).hexdigest())
    contents = {text: fmt.digest(text.encode()) for text in files}
    manifest = dataclasses.replace(
        plain.manifest,
        components=dict(components),
        compiled_by=dict(about),
        kernels={kernel: digest for text, digest in contents.items() for kernel in text},
    )
    native = {fmt.native(digest): text.encode() for text, digest in contents.items()}
    return store.publish(fmt.Payload(manifest, {fmt.BUNDLE: b"entry", **native}))


def found(store: Store, names: str) -> list[str]:
    files = list(KernelFiles(store, COMPONENTS).with_kernels(set(names)))
    for file in files:
        assert (file.digest, set(file.content.decode())) == (fmt.digest(file.content), file.kernels)
    return [file.content.decode() for file in files]


def test_files_with_the_most_missing_kernels_come_first(store: Store) -> None:
    publish(store, "ab", "cdef")
    publish(store, "fgh")
    assert found(store, "abcdef") == ["cdef", "ab"]
    assert found(store, "bxyz") == ["ab"]
    assert found(store, "xyz") == []


def test_file_with_mostly_unneeded_kernels_is_left_out(store: Store) -> None:
    publish(store, "abcde")
    assert found(store, "abc") == ["abcde"]
    assert found(store, "ab") == []


@pytest.mark.parametrize(
    ("components", "about"),
    [
        ({**COMPONENTS, "environment": "g++ 13"}, ABOUT),
        ({**COMPONENTS, "configs": "sha256:other flags"}, ABOUT),
        ({"configs": "defaults"}, ABOUT),
        (COMPONENTS, {"version": "another"}),
    ],
)
def test_kernels_of_another_compiler_configuration_or_version_are_left_out(
    store: Store, components: dict[str, str], about: dict[str, str]
) -> None:
    publish(store, "ab", components=components, about=about)
    assert found(store, "ab") == []


def test_damaged_file_is_quarantined_and_its_copy_in_another_artifact_is_found(store: Store) -> None:
    for _ in range(2):
        artifact = publish(store, "ab")
    flip(artifact.path / fmt.native(fmt.digest(b"ab")), 0)
    assert found(store, "ab") == ["ab"]
    for left in store.every():
        flip(left.path / fmt.native(fmt.digest(b"ab")), 0)
    assert found(store, "ab") == []
    assert len(quarantined(store)) == 2


@pytest.mark.parametrize("place", [".", "native", fmt.native(fmt.digest(b"ab")), fmt.MANIFEST])
def test_file_that_others_could_have_written_is_left_out(store: Store, place: str) -> None:
    path = publish(store, "ab").path / place
    path.chmod(path.stat().st_mode | 0o002)
    assert found(store, "ab") == []
    assert quarantined(store) == []


def test_evicted_artifact_is_left_out(store: Store) -> None:
    first, second = publish(store, "ab"), publish(store, "cd")
    files = KernelFiles(store, COMPONENTS).with_kernels(set("abcd"))
    one = next(files)
    for artifact in (first, second):  # after the search has read both manifests
        eviction.remove(store, artifact.manifest.key)
    assert list(files) == [] and set(one.content) in (set(b"ab"), set(b"cd"))
    assert found(store, "abcd") == []


def test_only_the_most_recently_used_artifacts_are_searched(store: Store) -> None:
    old = publish(store, "ab")
    use(old, 1.0)
    for _ in range(MAX_ARTIFACTS):
        publish(store, "cd")
    assert found(store, "abcd") == ["cd"]
    use(old, 1e10)
    assert sorted(found(store, "abcd")) == ["ab", "cd"]


def test_files_of_base_stores_are_left_out(tmp_path: Path, store: Store) -> None:
    publish(Store(tmp_path / "base"), "ab")
    assert found(Store(store.root, [tmp_path / "base"]), "ab") == []
