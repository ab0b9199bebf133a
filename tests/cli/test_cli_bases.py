"""Tests that commands name the store of each artifact, and never change a base store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support_artifacts import publish_artifact
from support_cli import answer, invoke

from precompiled.cli import checks_store
from precompiled.store import artifact_format as fmt
from precompiled.store import package_format
from precompiled.store.artifacts import Store
from precompiled.store.bases import Base

KEYS = [fmt.digest(bytes([number])) for number in range(2)]


def publish(store: Store, key: str) -> None:
    program = b'{"graph":[],"inputs":{"args":[],"ranges":[]},"modes":{},"configs":{},"environment":{},"hints":[]}'
    publish_artifact(store, key, program, name="Model.forward [0/0]", components={"graph": "g1"}, created=1e9)


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, Store]:
    """The user's store and a base store. The settings of the test process name both stores."""
    for name in list(os.environ):
        if name.startswith("PRECOMPILED"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PRECOMPILED_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("PRECOMPILED_BASE", str(tmp_path / "base"))
    base, own = Store(tmp_path / "base"), Store(tmp_path / "own", [tmp_path / "base"])
    publish(own, KEYS[0])
    publish(base, KEYS[1])
    function = package_format.function_key("model", "Net.forward", "0" * 64, one_graph=False)
    header = package_format.Header(function, "model", "Net.forward", "0" * 64, False, "compiled", artifacts=[KEYS[1]])
    base.packages.publish(header, package_format.About().to_bytes(), b"body")
    return own, base


def test_ls_show_and_explain_name_the_store(stores: tuple[Store, Store]) -> None:
    own, base = stores
    found = answer("cache", "ls")
    assert {row["key"]: row["store"] for row in found["entries"]} == {KEYS[0]: str(own.root), KEYS[1]: str(base.root)}
    assert [row["stores"] for row in found["packages"]] == [[str(base.root)]]
    assert str(base.root) in invoke("cache", "ls").output
    [variant] = answer("cache", "show", KEYS[1][:8])["variants"]
    assert variant["store"] == str(base.root)
    assert answer("cache", "show", "model.Net.forward")["entries"][0]["store"] == str(base.root)
    assert answer("explain", KEYS[1][:8])["store"] == str(base.root)
    assert answer("explain", "model.Net.forward")["store"] == str(base.root)
    assert [item["value"] for name, item in answer("config").items() if name == "base"] == [[str(base.root)]]


def test_clear_and_gc_do_not_change_a_base(stores: tuple[Store, Store]) -> None:
    own, base = stores
    assert answer("cache", "clear", KEYS[1][:8], "--yes", status=1)["error"]["code"] == "no-such-key"
    assert answer("cache", "clear", "--yes")["removed"] == 1
    assert answer("cache", "gc", "--set", "cache_max_bytes=1")["removed"] == 0
    assert [artifact.root for artifact in own.all_artifacts()] == [base.root]


def test_doctor_checks_each_base(stores: tuple[Store, Store], tmp_path: Path) -> None:
    own, base = stores
    checks = {check.check: check for check in checks_store.run_bases(own)}
    found = checks[f"base {base.root}"]
    assert (found.state, found.message) == ("ok", "1 artifact") and checks["bases"].state == "ok"
    assert checks_store.base(Base(tmp_path / "nowhere")).state == "warn"

    [artifact] = [artifact for artifact in own.all_artifacts() if artifact.root == base.root]
    own.set_aside(artifact, "torch cannot load it")
    assert checks_store.left_out(own).state == "warn" and checks_store.quarantine(own).state == "ok"

    (artifact.path / fmt.BUNDLE).chmod(0o666)
    said = checks_store.base(Base(base.root))
    assert said.state == "warn" and "0666" in said.message and said.action
    (artifact.path / fmt.BUNDLE).chmod(0o600)
    (artifact.path / fmt.MANIFEST).write_bytes(b"{}")
    assert "damaged, or of another version" in checks_store.base(Base(base.root)).message
