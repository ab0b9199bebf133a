"""Tests of `cache size`, `cache dir` and `cache clear`: what they count, remove and keep."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from support_cli import KEYS, answer, invoke

from precompiled.cli import store as commands
from precompiled.store import package_format, scratch
from precompiled.store.artifacts import Store
from precompiled.store.packages import PackageStore
from precompiled.store.triton_kernels import TritonKernels, seal


@pytest.fixture
def full(store: Store) -> Store:
    """The fixture ``store`` with more files: a package entry, a scratch file, a run's record, a quarantined file."""
    header = package_format.Header("a" * 64, "program", "f", "0" * 64, False, "compiled")
    PackageStore(store.root).publish(header, b"{}", bytes(2000))
    headers = scratch.directory(store.root) / "precompiled_headers"
    headers.mkdir(parents=True)
    (headers / "header.h.gch").write_bytes(bytes(3 << 20))
    TritonKernels(store.root).publish("a" * 64, seal("a" * 64, "added", {"added.cubin": bytes(100)}))
    (store.root / "runs").mkdir()
    (store.root / "runs" / "record").write_bytes(bytes(500))
    (store.quarantined / "old").write_bytes(bytes(10))
    return store


def files(store: Store) -> set[str]:
    return {str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file()}


def test_dir_prints_only_the_path(store: Store) -> None:
    assert invoke("cache", "dir").output == f"{store.root}\n"
    assert answer("cache", "dir") == {"cache_dir": str(store.root)}


@pytest.mark.parametrize("command", ["ls", "size", "gc"])
def test_command_that_makes_a_store_safe_again_suffices(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """The printed command works in any working directory, and mends all files below the refused directory."""
    spaced = tmp_path / "a b"
    store.root.rename(spaced)
    for path in (spaced / "artifacts", *(spaced / "artifacts").rglob("*")):
        path.chmod(path.stat().st_mode | 0o022)
    error = answer("cache", command, "--cache-dir", str(spaced), status=1)["error"]
    monkeypatch.chdir("/")
    subprocess.run(error["action"].split("`")[1], shell=True, check=True)
    assert len(answer("cache", "ls", "--cache-dir", str(spaced))["entries"]) == 4


def test_size_adds_up_to_what_is_on_the_disk(full: Store) -> None:
    found = answer("cache", "size")
    parts = {part["name"]: (part["count"], part["bytes"]) for part in found["parts"]}
    assert {name: count for name, (count, _) in parts.items()} == {
        "artifacts": 3,
        "packages": 1,
        "kernels": 1,
        "failure records": 1,
        "scratch": None,
        "records and logs": None,
    }
    assert parts["scratch"] == (None, 3 << 20) and parts["records and logs"] == (None, 510)
    assert parts["artifacts"][1] > 3 * 2048 and parts["packages"][1] > 2000 and parts["failure records"][1] > 0
    on_disk = sum((full.root / name).stat().st_size for name in files(full))
    assert found["bytes"] == on_disk == sum(size for _, size in parts.values())
    *lines, note = invoke("cache", "size").output.splitlines()
    assert note.startswith("scratch: precompiled C++ headers")
    assert [line.split("  ")[0].strip() for line in lines[1:]] == [*parts, "total"] and max(map(len, lines)) < 40


def test_size_of_an_empty_store_is_0(settled: None) -> None:
    assert answer("cache", "size")["bytes"] == 0


def test_clear_removes_scratch_files_and_reports_what_is_left(full: Store) -> None:
    before = answer("cache", "size")["bytes"]
    result = invoke("cache", "clear", "--yes")
    assert files(full) == {"runs/record"}
    assert result.output == (
        "Removed 3 artifacts and 1 entry of packages, 3.0 MiB.\n500 B left: records of runs, and logs.\n"
    )
    assert answer("cache", "clear") == {"removed": 0, "packages": 0, "bytes": 0, "bytes_left": 500}
    assert before > 3 << 20


def test_clear_keeps_scratch_files_of_running_compiles(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "under_way", lambda root: [object()])
    said = invoke("cache", "clear", "--yes").output
    assert "3.0 MiB left: scratch files of 1 compile under way, records of runs, and logs." in said
    (left,) = files(full) - {"runs/record"}
    assert left.endswith("header.h.gch")


def test_clear_of_a_key_keeps_everything_else(full: Store) -> None:
    before = files(full)
    assert invoke("cache", "clear", "--yes", KEYS[0][:4].upper()).exit_code == 0
    assert before - files(full) == {name for name in before if name.startswith(f"artifacts/{KEYS[0]}")}


def test_the_confirmation_of_clear_shows_the_size(full: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    before = files(full)
    result = invoke("cache", "clear")
    assert result.exit_code == 2 and "--yes" in result.stderr
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(commands, "sys", SimpleNamespace(stdin=terminal))
    asked: list[str] = []
    monkeypatch.setattr(commands.click, "confirm", lambda text, err: asked.append(text))
    result = invoke("cache", "clear")
    assert result.exit_code == 130 and result.stderr == "Nothing removed.\n" and files(full) == before
    assert asked == [f"Remove everything (3.0 MiB) from {full.root}?"]


@pytest.mark.parametrize("command", ["cache clear", "cache show", "daemon cancel", "daemon retry"])
def test_a_word_that_is_no_key_is_wrong_use(full: Store, command: str) -> None:
    result = invoke(*command.split(), "nope")
    assert result.exit_code == 2
    assert "'nope' is not a key" in result.stderr and "`precompiled cache ls` lists all keys" in result.stderr


def test_keys_are_completed(full: Store) -> None:
    from click.shell_completion import ShellComplete

    from precompiled.cli.app import cli

    complete = ShellComplete(cli, {}, "precompiled", "_C").get_completions
    for command in (["cache", "show"], ["cache", "clear"], ["daemon", "retry"], ["remote", "push"]):
        assert [item.value for item in complete(command, "")] == sorted(key[:12] for key in KEYS)
        assert [item.value for item in complete(command, KEYS[0][:3])] == [KEYS[0][:12]]
    assert [item.value for item in complete(["explain"], KEYS[1][:4])] == [KEYS[1][:12]]
    assert [item.value for item in complete(["cache", "show", "--cache-dir", os.devnull], "")] == []
    assert Path(full.root).exists()
