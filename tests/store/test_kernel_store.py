"""Tests of Triton kernels in a store and its bases: format, trust, quarantine and eviction."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support_store import KEY, OTHER, flip, payload

from precompiled.core.errors import CorruptArtifact, StoreError, UntrustedStore
from precompiled.store import baking, eviction
from precompiled.store.artifacts import Store
from precompiled.store.triton_kernels import KERNELS, TritonKernels, open_kernel, seal

FILES = {"added.json": b'{"shared": 0}', "added.cubin": b"\x7fELF" + bytes(range(256))}


@pytest.fixture
def kernels(tmp_path: Path) -> TritonKernels:
    found = TritonKernels(tmp_path / "store")
    found.publish(KEY, seal(KEY, "added", FILES))
    return found


def test_published_kernel_is_read(kernels: TritonKernels) -> None:
    assert kernels.read(KEY) == FILES and kernels.read(OTHER) is None
    assert (kernels.has(KEY), kernels.has(OTHER), kernels.all_keys()) == (True, False, [KEY])
    assert list(kernels.tmp.iterdir()) == []


def test_equal_kernels_have_equal_bytes() -> None:
    assert seal(KEY, "added", FILES) == seal(KEY, "added", dict(FILES))


@given(st.integers(0, len(seal(KEY, "added", FILES)) - 1), st.integers(1, 255))
def test_each_altered_byte_is_found(position: int, change: int) -> None:
    content = bytearray(seal(KEY, "added", FILES))
    content[position] ^= change
    with pytest.raises(CorruptArtifact):
        open_kernel(KEY, bytes(content))


@given(st.integers(0, len(seal(KEY, "added", FILES)) - 1))
def test_each_truncation_is_found(length: int) -> None:
    with pytest.raises(CorruptArtifact):
        open_kernel(KEY, seal(KEY, "added", FILES)[:length])


def test_kernel_of_another_key_is_refused() -> None:
    with pytest.raises(CorruptArtifact):
        open_kernel(OTHER, seal(KEY, "added", FILES))


@pytest.mark.parametrize("name", ["../added.json", "/added.json", "a/b", "..", ""])
def test_file_name_outside_of_the_kernels_folder_is_refused(name: str) -> None:
    with pytest.raises(CorruptArtifact):
        open_kernel(KEY, seal(KEY, "added", {name: b"{}"}))


@pytest.mark.reason("kernel-corrupt")
def test_altered_kernel_is_quarantined_with_a_reason(kernels: TritonKernels) -> None:
    flip(kernels.path(KEY), -1)
    with pytest.raises(CorruptArtifact) as caught:
        kernels.read(KEY)
    assert caught.value.code == "kernel-corrupt"
    assert kernels.read(KEY) is None
    reason, moved = sorted(kernels.quarantined.iterdir(), key=lambda path: path.suffix != ".reason")
    assert reason.name == f"{moved.name}.reason" and "digest" in reason.read_text()


def test_kernel_of_another_format_stays(kernels: TritonKernels) -> None:
    line, _, body = kernels.path(KEY).read_bytes().partition(b"\n")
    kernels.path(KEY).write_bytes(json.dumps({**json.loads(line), "format": 99}).encode() + b"\n" + body)
    with pytest.raises(CorruptArtifact) as caught:
        kernels.read(KEY)
    assert caught.value.code == "artifact-format" and kernels.has(KEY)


def test_kernel_that_others_can_write_is_refused_and_stays(kernels: TritonKernels) -> None:
    kernels.path(KEY).chmod(0o666)
    with pytest.raises(UntrustedStore):
        kernels.read(KEY)
    kernels.path(KEY).chmod(0o600)
    kernels.kernels.chmod(0o777)
    for refused in (kernels.read, lambda key: kernels.publish(key, seal(key, "added", FILES))):
        with pytest.raises(UntrustedStore):
            refused(KEY)
    kernels.kernels.chmod(0o700)
    assert kernels.read(KEY) == FILES


def test_link_is_refused(kernels: TritonKernels, tmp_path: Path) -> None:
    kernels.path(KEY).rename(tmp_path / "elsewhere")
    kernels.path(KEY).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UntrustedStore):
        kernels.read(KEY)


def test_folder_that_cannot_be_written_raises_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / KERNELS).write_text("a file")
    with pytest.raises(StoreError):
        TritonKernels(tmp_path).publish(KEY, seal(KEY, "added", FILES))


def test_base_is_searched_after_the_store(kernels: TritonKernels, tmp_path: Path) -> None:
    problems: list[str] = []
    above = TritonKernels(tmp_path / "above", [kernels.root, tmp_path / "absent"], problems.append)
    assert above.read(KEY) == FILES and above.has(KEY) and above.all_keys() == []
    flip(kernels.path(KEY), -1)
    assert above.read(KEY) is None and len(problems) == 1
    assert kernels.has(KEY), "a base is never changed"


def test_baked_base_has_the_kernels(kernels: TritonKernels, tmp_path: Path) -> None:
    baked = baking.bake(Store(kernels.root), tmp_path / "base")
    assert (baked.artifacts, baked.kernels) == (0, 1)
    assert TritonKernels(tmp_path / "above", [tmp_path / "base"]).read(KEY) == FILES
    assert (tmp_path / "base" / KERNELS).stat().st_mode & 0o777 == 0o755


def test_eviction_removes_the_least_recently_used_kernels(kernels: TritonKernels) -> None:
    kernels.publish(OTHER, seal(OTHER, "other", FILES))
    os.utime(kernels.path(KEY), (1000, 1000))
    size = kernels.path(OTHER).stat().st_size
    store = Store(kernels.root)
    store.publish(payload())
    eviction.evict(store, int((size + 10) / eviction.KERNELS_SHARE), 1000)
    assert kernels.all_keys() == [OTHER] and store.lookup(KEY), "artifacts have a larger share"
    eviction.clear(store)
    assert kernels.all_keys() == []


def test_read_renews_the_time_of_the_last_use(kernels: TritonKernels) -> None:
    os.utime(kernels.path(KEY), (1000, 1000))
    kernels.read(KEY)
    assert kernels.path(KEY).stat().st_mtime > 2000
