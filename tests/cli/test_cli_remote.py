"""Tests of the commands `remote keys`, `remote push`, `remote pull`, `remote sync`, `remote ls` and `remote gc`."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import types
from pathlib import Path

import pytest
from support_artifacts import publish_artifact
from support_cli import answer, invoke

from precompiled.core import config
from precompiled.remote import commands, expiry, helper_link, state
from precompiled.store import artifact_format as fmt
from precompiled.store import package_format, run_records
from precompiled.store.artifacts import Store

KEY, OTHER = fmt.digest(b"a graph"), fmt.digest(b"another graph")


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Returns command-line flags for two hosts, "a" and "b", that share a bucket. The store of "a" has an artifact."""
    for name in list(os.environ):
        if name.startswith(("PRECOMPILED", "XDG")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PRECOMPILED_REMOTE", f"file://{tmp_path / 'bucket'}")
    publish_artifact(Store(tmp_path / "a"), KEY, name="f", compile_s=1.0, created=1e9)
    return {name: ["--cache-dir", str(tmp_path / name)] for name in ("a", "b")}


@pytest.mark.reason("key-exists", "bad-public-key", "remote-unusable")
def test_keys_are_created_listed_trusted_and_forgotten(hosts: dict[str, list[str]]) -> None:
    assert answer("remote", "keys", "list")["keys"] == []
    assert answer("remote", "push", *hosts["a"], status=1)["error"]["code"] == "remote-unusable"
    made = answer("remote", "keys", "new")
    assert answer("remote", "keys", "new", status=1)["error"]["code"] == "key-exists"
    [own] = answer("remote", "keys", "list")["keys"]
    assert (own["id"], own["own"]) == (made["id"], True) and made["id"] in invoke("remote", "keys", "list").output
    assert answer("remote", "keys", "trust", f"{made['public']} a friend")["name"] == "a friend"
    assert answer("remote", "keys", "trust", *made["public"].split(), "a", "friend")["name"] == "a friend", "no quotes"
    assert [key["name"] for key in answer("remote", "keys", "list")["keys"]] == ["(your own)", "a friend"]
    assert [answer("remote", "keys", "forget", made["id"])["forgotten"] for _ in range(2)] == [True, False]
    for arguments in (["trust", "nothing"], ["forget", "../own.pem"]):
        assert answer("remote", "keys", *arguments, status=1)["error"]["code"] == "bad-public-key"


def test_pushed_objects_are_listed_and_pulled(hosts: dict[str, list[str]], tmp_path: Path) -> None:
    made = answer("remote", "keys", "new")
    assert answer("remote", "push", *hosts["a"])["put"] == 1 and answer("remote", "push", *hosts["a"])["put"] == 0
    [row] = answer("remote", "ls", *hosts["b"])["objects"]
    assert (row["kind"], row["group"], row["by"], row["believed"]) == ("artifact", KEY, made["id"], True)
    assert KEY[:12] in invoke("remote", "ls").output
    assert answer("remote", "pull", "ffff", *hosts["b"], status=1)["error"]["code"] == "no-such-key"
    assert answer("remote", "push", "ffff", *hosts["a"], status=1)["error"]["code"] == "no-such-key"
    assert answer("remote", "push", KEY[:4], *hosts["a"])["put"] == 0
    assert answer("remote", "pull", *hosts["b"])["fetched"] == 1
    assert len(Store(tmp_path / "b").lookup(KEY)) == 1
    # A host with a second key must not trust objects that were signed with the first key.
    (tmp_path / "config" / "precompiled" / "keys" / "own.pem").unlink()
    answer("remote", "keys", "new")
    refused = answer("remote", "pull", "--cache-dir", str(tmp_path / "c"), status=1)
    assert (refused["fetched"], refused["refused"]) == (0, {"remote-untrusted": 1})


def test_push_and_pull_select_by_age_or_program(hosts: dict[str, list[str]], tmp_path: Path) -> None:
    answer("remote", "keys", "new")
    # The artifact was created in 2001.
    assert answer("remote", "push", "--days", "30", *hosts["a"])["put"] == 0
    program = tmp_path / "train.py"
    program.write_text("import torch\n")
    run = run_records.begin(tmp_path / "a", "one") / "0-1.jsonl"
    process = {
        "rank": 0,
        "ranks": 1,
        "pid": 1,
        "started": "",
        "program": "train.py",
        "argv": [],
        "executable": "",
        "directory": "",
        "began": 1.0,
    }
    run.write_text("".join(json.dumps(line) + "\n" for line in (process, {"id": "x", "key": KEY})))
    run.chmod(0o600)
    other = str(tmp_path / "other.py")
    assert answer("remote", "push", "--program", other, *hosts["a"], status=2)["error"]["code"] == "usage"
    assert answer("remote", "push", "--program", str(program), KEY, *hosts["a"], status=2)["error"]["code"] == "usage"
    there = state.open_remote(config.load({"cache_dir": tmp_path / "a"}))
    [function, other] = ("f" * 64, "e" * 64)
    header = package_format.Header(function, "program", "f", "0" * 64, False, "compiled", artifacts=[KEY])
    name = there.store.packages.publish(header, b"{}", b"body")
    there.store.packages.publish(dataclasses.replace(header, function=other, artifacts=[KEY, OTHER]), b"{}", b"body")
    # Pushes three objects: the artifact, the package entry that needs only this artifact, and the list for `pull`.
    assert answer("remote", "push", "--program", str(program), *hosts["a"])["put"] == 3
    assert answer("remote", "push", "--program", str(program), *hosts["a"])["put"] == 0
    assert answer("remote", "pull", "--program", str(program), "--days", "1", *hosts["b"])["fetched"] == 2
    mine = Store(tmp_path / "b")
    assert mine.lookup(KEY) and mine.packages.names(function) == [name] and not mine.packages.names(other)
    done = answer("remote", "sync", "--cache-dir", str(tmp_path / "c"))
    assert (done["fetched"], done["put"]) == (2, 0)
    (tmp_path / "d").mkdir()
    os.utime(next((tmp_path / "bucket" / "artifacts" / KEY).iterdir()), (1, 1))
    assert answer("remote", "pull", "--days", "1", "--cache-dir", str(tmp_path / "d"))["fetched"] == 1


def test_gc_removes_by_age_or_total_size(hosts: dict[str, list[str]], tmp_path: Path) -> None:
    answer("remote", "keys", "new")
    store = Store(tmp_path / "a")
    [artifact] = store.lookup(KEY)
    other = dataclasses.replace(artifact.manifest, key=OTHER)
    store.publish(fmt.Payload(other, {fmt.BUNDLE: b"y" * 50}))
    answer("remote", "push", *hosts["a"])
    folder = tmp_path / "bucket" / "artifacts"
    [old], [new] = (list((folder / key).iterdir()) for key in (KEY, OTHER))
    lease, mine = folder / KEY / "lease-unsigned-00000001", tmp_path / "bucket" / "README"
    for path in (lease, mine):
        path.write_text("x")
    for path in (old, lease, mine):
        os.utime(path, (1e9, 1e9))
    assert answer("remote", "gc", *hosts["a"], status=2)["error"]["code"] == "usage"
    before = sorted((tmp_path / "bucket").rglob("*"))
    gone = answer("remote", "gc", "--days", "30", "--dry-run", *hosts["a"])
    nowhere = answer("remote", "gc", "--days", "30", "--set", f"remote=file://{tmp_path / 'mistyped'}", *hosts["a"])
    assert nowhere["removed"] == [] and not (tmp_path / "mistyped").exists()
    assert sorted((tmp_path / "bucket").rglob("*")) == before
    assert len(gone["removed"]) == 2 and old.exists()
    gone = answer("remote", "gc", "--days", "30", *hosts["a"])
    assert {path.rpartition("/")[2] for path in gone["removed"]} == {old.name, lease.name}
    assert (old.exists(), lease.exists(), mine.exists(), gone["bytes_left"]) == (False, False, True, new.stat().st_size)
    assert answer("remote", "gc", "--max-bytes", "100000", *hosts["a"])["removed"] == []
    assert len(answer("remote", "gc", "--max-bytes", "1", *hosts["a"])["removed"]) == 1 and not new.exists()


@pytest.mark.fault("clocks")
def test_a_fast_local_clock_removes_no_valid_lease(
    hosts: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer("remote", "keys", "new")
    lease = tmp_path / "bucket" / "artifacts" / KEY / "lease-unsigned-00000001"
    lease.parent.mkdir(parents=True)
    lease.write_text("x")
    fast = types.SimpleNamespace(time=lambda: time.time() + 2 * 3600.0)
    for module in (commands, expiry):
        monkeypatch.setattr(module, "time", fast)
    assert answer("remote", "gc", "--days", "30", *hosts["a"])["removed"] == []
    assert os.listdir(tmp_path / "bucket") == ["artifacts"] and lease.exists()


def test_doctor_and_status_show_the_remote(hosts: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    [check] = state.checks(config.load())
    assert check.state == "warn" and "remote-unusable" in check.message and check.action
    # A helper that failed for the same reason adds no second warning.
    settings = config.load()
    (folder := helper_link.folder(settings.cache_dir)).mkdir(parents=True, exist_ok=True)
    known = {"remote": settings.remote, "state": "unusable", "code": "remote-unusable", "reason": "no key"}
    (folder / helper_link.STATE).write_text(json.dumps(known))
    assert [check.check for check in state.checks(settings)] == ["remote"]
    (folder / helper_link.STATE).write_text(json.dumps({**known, "code": "remote-timeout"}))
    assert [check.check for check in state.checks(settings)] == ["remote", "remote helper"]
    (folder / helper_link.STATE).unlink()
    answer("remote", "keys", "new")
    [check] = state.checks(config.load())
    assert (check.check, check.state) == ("remote", "ok")
    monkeypatch.setenv("PRECOMPILED_REMOTE_UNSIGNED", "1")
    assert [check.state for check in state.checks(config.load())] == ["ok", "warn"]
    status = answer("status", "--runtime-dir", "/nonexistent/run", *hosts["a"], status=1)
    assert status["remote"]["state"] == "unused"
    monkeypatch.delenv("PRECOMPILED_REMOTE")
    assert list(state.checks(config.load())) == []
    assert answer("remote", "pull", *hosts["a"], status=1)["error"]["code"] == "remote-unusable"
