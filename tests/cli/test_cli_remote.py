"""keys, push, pull and remote ls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support_cli import answer, invoke

from precompiled.cli import checks_remote
from precompiled.core import config
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Store

KEY = fmt.digest(b"a graph")


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Flags of two hosts' commands, over one bucket."""
    for name in list(os.environ):
        if name.startswith(("PRECOMPILED", "XDG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PRECOMPILED_REMOTE", f"file://{tmp_path / 'bucket'}")
    manifest = fmt.Manifest(
        key=KEY, name="f", components={}, environment={}, device="cpu", guards="", files={}, compile_s=1.0,
        created=1e9, compiled_by={},
    )  # fmt: skip
    Store(tmp_path / "a").publish(fmt.Payload(manifest, {fmt.BUNDLE: b"x" * 100}))
    return {name: ["--cache-dir", str(tmp_path / name)] for name in ("a", "b")}


@pytest.mark.reason("key-exists", "bad-public-key", "remote-unusable")
def test_keys_are_made_shown_believed_and_forgotten(hosts: dict[str, list[str]]) -> None:
    assert answer("keys", "list")["keys"] == []
    assert answer("push", *hosts["a"], status=1)["error"]["code"] == "remote-unusable"
    made = answer("keys", "new")
    assert answer("keys", "new", status=1)["error"]["code"] == "key-exists"
    [own] = answer("keys", "list")["keys"]
    assert (own["id"], own["own"]) == (made["id"], True) and made["id"] in invoke("keys", "list").output
    assert answer("keys", "trust", f"{made['public']} a friend")["name"] == "a friend"
    assert [key["name"] for key in answer("keys", "list")["keys"]] == ["(your own)", "a friend"]
    assert answer("keys", "forget", made["id"])["forgotten"] and not answer("keys", "forget", made["id"])["forgotten"]
    for arguments in (["trust", "nothing"], ["forget", "../own.pem"]):
        assert answer("keys", *arguments, status=1)["error"]["code"] == "bad-public-key"


def test_what_is_pushed_is_listed_and_pulled(hosts: dict[str, list[str]], tmp_path: Path) -> None:
    made = answer("keys", "new")
    assert answer("push", *hosts["a"])["put"] == 1 and answer("push", *hosts["a"])["put"] == 0
    [row] = answer("remote", "ls", *hosts["b"])["objects"]
    assert (row["kind"], row["group"], row["by"], row["believed"]) == ("artifact", KEY, made["id"], True)
    assert KEY[:12] in invoke("remote", "ls").output
    assert answer("pull", "ffff", *hosts["b"])["fetched"] == 0
    assert answer("pull", *hosts["b"])["fetched"] == 1
    assert len(Store(tmp_path / "b").lookup(KEY)) == 1
    # Another user of the bucket believes nothing of it.
    (tmp_path / "config" / "precompiled" / "keys" / "own.pem").unlink()
    answer("keys", "new")
    refused = answer("pull", "--cache-dir", str(tmp_path / "c"), status=1)
    assert (refused["fetched"], refused["refused"]) == (0, {"remote-untrusted": 1})


def test_doctor_and_status_tell_of_the_remote(hosts: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    [check] = checks_remote.run(config.load())
    assert check.state == "warn" and "remote-unusable" in check.message and check.action
    answer("keys", "new")
    [check] = checks_remote.run(config.load())
    assert (check.check, check.state) == ("remote", "ok")
    monkeypatch.setenv("PRECOMPILED_REMOTE_UNSIGNED", "1")
    assert [check.state for check in checks_remote.run(config.load())] == ["ok", "warn"]
    status = answer("status", "--runtime-dir", "/nonexistent/run", *hosts["a"], status=1)
    assert status["remote"]["state"] == "unused"
    monkeypatch.delenv("PRECOMPILED_REMOTE")
    assert list(checks_remote.run(config.load())) == []
    assert answer("pull", *hosts["a"], status=1)["error"]["code"] == "remote-unusable"
