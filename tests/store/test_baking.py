"""Tests of baking a store into a base store. The base holds everything that another process needs, is readable by every
user, and passes the checks of a base.
"""

from __future__ import annotations

import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from support_store import KEY, OTHER, failure, payload

from precompiled.core.errors import StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import baking, package_format
from precompiled.store.artifacts import Store

PROGRAM = fmt.pack_program(b'{"graph":[]}')


def with_program(guards: str) -> fmt.Payload:
    plain = payload(guards=guards)
    return fmt.Payload(plain.manifest, {**plain.files, fmt.PROGRAM: PROGRAM})


def header(code: str = "0") -> package_format.Header:
    function = package_format.function_key("program", "f", code * 64, one_graph=False)
    return package_format.Header(function, "program", "f", code * 64, False, "compiled")


def test_base_holds_exactly_the_usable_artifacts_and_entries(store: Store, tmp_path: Path) -> None:
    for guards in ("s0 < 3", "s0 > 3", "s0 == 3"):
        store.publish(with_program(guards))
    store.publish(fmt.Payload(replace(payload().manifest, key=OTHER), {**payload().files, fmt.PROGRAM: PROGRAM}))
    shutil.rmtree(store.artifacts / f"{KEY}.1")  # as an eviction does, this leaves a gap in the slots of the key
    store.publish_failure(failure("0" * 64))
    name = store.packages.publish(header(), b"{}", b"body")
    store.packages.publish(header("1"), b"{}", b"body")
    store.packages.refuse(header("1"), "an audit")
    target = tmp_path / "base"
    umask = os.umask(0o077)
    try:
        baked = baking.bake(store, target)
    finally:
        os.umask(umask)
    assert (baked.artifacts, baked.packages) == (3, 1)
    assert baked.bytes == sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    assert sorted(os.listdir(target)) == ["artifacts", "packages"]
    assert sorted(os.listdir(target / "artifacts")) == sorted([f"{KEY}.0", f"{KEY}.1", f"{OTHER}.0"])
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [target, *target.rglob("*")]}
    assert modes == {0o755, 0o644}

    above = Store(tmp_path / "own", [target])
    assert [item.manifest.guards for item in above.lookup(KEY)] == ["s0 < 3", "s0 == 3"]
    for artifact in above.all_artifacts():
        assert above.read_files(artifact) == payload().files
        # A base store needs an artifact's captured graph (program) only if the artifact has guards. For further sizes,
        # a client then submits this captured graph without a trace.
        assert (fmt.PROGRAM in artifact.manifest.files) == bool(artifact.manifest.guards)
    assert above.packages.read(header().function, name).body == b"body"
    assert above.packages.names(header("1").function) == []


@pytest.mark.reason("bake-target")
def test_existing_target_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "base" / "artifacts").mkdir(parents=True)
    for target in (tmp_path / "base", tmp_path / "nowhere" / "base"):
        with pytest.raises(StoreError) as raised:
            baking.check_target(target)
        assert raised.value.code == "bake-target"
    (tmp_path / "empty").mkdir()
    baking.check_target(tmp_path / "empty")


def test_failed_bake_leaves_no_files(store: Store, tmp_path: Path) -> None:
    published = store.publish(payload())
    (published.path / fmt.BUNDLE).unlink()
    with pytest.raises(StoreError):
        baking.bake(store, tmp_path / "base")
    assert sorted(os.listdir(tmp_path)) == ["store"]
