"""Tests that no file of another user is used: owners, modes, links, mounts, and files that change during a check."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from precompiled.service.watch.registry import Record, Registry
from support_altered import LIBRARY
from support_remote import FUNCTION, HEADER
from support_store import KEY, failure, payload

from precompiled import wire
from precompiled.core.errors import StoreError, UntrustedStore
from precompiled.store import artifact_format as fmt
from precompiled.store import eviction, job_phases, lines, run_records
from precompiled.store.artifacts import Store

STRANGER, THIRD = 54321, 54322
RENAME_EXCHANGE = 2  # a flag of renameat2: exchanges two files atomically
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: needs root, to give files to another user")

ARTIFACT = f"artifacts/{KEY}.0"
# Maps paths in the store to the kind of read that reaches them (TrustedStore.reads). The paths are files that contain
# code or name a program or process, and all folders above these files.
PLACES = {
    ".": "artifact",
    "artifacts": "artifact",
    ARTIFACT: "artifact",
    f"{ARTIFACT}/{fmt.MANIFEST}": "artifact",
    f"{ARTIFACT}/{fmt.BUNDLE}": "artifact",
    f"{ARTIFACT}/native": "artifact",
    f"{ARTIFACT}/{LIBRARY}": "artifact",
    "packages": "entry",
    f"packages/{FUNCTION}": "entry",
    "ENTRY": "entry",
    "runs": "run",
    "runs/run": "run",
    "runs/run/0-1.jsonl": "run",
    "jobs": "job",
    "jobs/1-2.jsonl": "job",
    "watch": "watch",
    "watch/id.json": "watch",
}


class TrustedStore:
    """A store with a file in each place."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)
        self.store.publish(payload())
        self.entry = self.store.packages.publish(HEADER, b"{}", b"body")
        process = {"rank": 0, "ranks": 1, "pid": 1, "started": "2", "program": "p", "argv": ["a", "b"]}
        lines.AppendedFile(run_records.begin(root, "run") / "0-1.jsonl").append(
            {**process, "executable": "e", "directory": "/", "began": 1.0}
        )
        lines.AppendedFile(lines.folder(root, job_phases.JOBS) / "1-2.jsonl").append(
            {"pid": 1, "started": "2", "launched": 1.0, "ready": 2.0}
        )
        Registry(root).save("id", Record(wire.Registration("entry", ["m:f"], "/usr/bin/python3", "/", "/s", {})))

    def path(self, place: str) -> Path:
        return self.store.root / (f"packages/{FUNCTION}/{self.entry}" if place == "ENTRY" else place)

    def reads(self, what: str) -> bool:
        """Return whether a read of this kind (a value of PLACES) returns what the store contains."""
        store, root = self.store, self.store.root
        job_phases._read.clear()
        try:
            match what:
                case "artifact":
                    return [store.read_files(found) for found in store.lookup(KEY)] == [payload().files]
                case "entry":
                    return [store.packages.read(FUNCTION, name).body for name in store.packages.names(FUNCTION)] != []
                case "run":
                    return bool(run_records.runs(root))
                case "job":
                    return bool(job_phases.workers(root))
            return bool(list(Registry(root).load()))
        except UntrustedStore as error:
            assert error.action, "an error says what to do next"
            return False


@pytest.fixture
def trusted(tmp_path: Path) -> TrustedStore:
    found = TrustedStore(tmp_path / "store")
    assert all(found.reads(what) for what in set(PLACES.values()))
    return found


def _faults(path: Path, aside: Path) -> Iterator[str]:
    """Provoke each fault of the file or folder ``path``, and undo the fault."""
    mode, owner = path.stat().st_mode, path.stat().st_uid
    for more in (0o020, 0o002, 0o1777):
        path.chmod(mode | more)
        yield f"mode {mode | more:o}"
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, STRANGER, -1)
        yield "another owner"
        os.chown(path, owner, -1)
    path.rename(aside)
    path.symlink_to(aside)
    yield "link"
    path.unlink()
    os.mkfifo(path, 0o600)
    yield "FIFO"
    path.unlink()
    aside.rename(path)


@pytest.mark.fault("untrusted-files")
@pytest.mark.parametrize("place", PLACES)
def test_untrusted_place_is_not_read(trusted: TrustedStore, tmp_path: Path, place: str) -> None:
    path = trusted.path(place).resolve()
    for fault in _faults(path, tmp_path / "aside"):
        assert not trusted.reads(PLACES[place]), fault
    assert trusted.reads(PLACES[place])


@needs_root
@pytest.mark.fault("untrusted-files")
@pytest.mark.parametrize("place", [f"{ARTIFACT}/{fmt.BUNDLE}", f"{ARTIFACT}/{LIBRARY}", "ENTRY", "watch/id.json"])
def test_hard_link_to_a_file_of_another_user_is_not_read(trusted: TrustedStore, tmp_path: Path, place: str) -> None:
    """The content is right, but the file's owner can still change the content."""
    theirs = tmp_path / "theirs"
    shutil.copy(trusted.path(place), theirs)
    os.chown(theirs, STRANGER, -1)
    trusted.path(place).unlink()
    os.link(theirs, trusted.path(place))
    assert not trusted.reads(PLACES[place])


@needs_root
@pytest.mark.fault("untrusted-files")
@pytest.mark.parametrize("place", ["artifacts", ARTIFACT, f"{ARTIFACT}/native", f"packages/{FUNCTION}", "watch"])
def test_mount_of_another_users_folder_is_not_read(trusted: TrustedStore, tmp_path: Path, place: str) -> None:
    path, theirs = trusted.path(place), tmp_path / "theirs"
    shutil.copytree(path, theirs)
    for parent, folders, files in os.walk(theirs):
        for name in (".", *folders, *files):
            os.chown(os.path.join(parent, name), STRANGER, STRANGER)
    done = _in_own_mounts(lambda: subprocess.run(["mount", "--bind", theirs, path], check=True), trusted, PLACES[place])
    assert done == "refused"


def _in_own_mounts(mount: Callable[[], object], trusted: TrustedStore, what: str) -> str:
    """Return "read" or "refused": what a fork of this process does with a place after a mount that only the fork
    sees.
    """
    if not hasattr(os, "unshare") and shutil.which("unshare") is None:
        pytest.skip("NOT RUN: needs unshare, for mounts of its own")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"cannot mount"
        with suppress(BaseException):
            libc = ctypes.CDLL(None, use_errno=True)
            new_mounts, private_and_recursive = 0x00020000, (1 << 18) | (1 << 14)
            if libc.unshare(new_mounts) == 0 and libc.mount(b"none", b"/", None, private_and_recursive, None) == 0:
                mount()
                said = b"read" if trusted.reads(what) else b"refused"
        os.write(writing, said)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        said = file.read().decode()
    os.waitpid(child, 0)
    if said == "cannot mount":
        pytest.skip("NOT RUN: this root cannot mount (a container without CAP_SYS_ADMIN)")
    return said


@needs_root
@pytest.mark.fault("untrusted-files")
@pytest.mark.parametrize("what", ["artifact", "file", "entry"])
def test_file_that_is_exchanged_during_a_check_is_not_used(
    tmp_path: Path, what: str, tries: Callable[[int, int], int]
) -> None:
    """In a loop, a thread exchanges a file with another user's file, whose content has a valid digest."""
    trusted = TrustedStore(tmp_path / "store")
    store = trusted.store
    place = {"artifact": ARTIFACT, "file": f"{ARTIFACT}/{fmt.MANIFEST}", "entry": "ENTRY"}[what]
    mine = trusted.path(place)
    theirs = Store(tmp_path / "theirs")
    sent = payload()
    hostile = {**sent.files, fmt.BUNDLE: b"hostile"}
    artifact = theirs.publish(fmt.Payload(sent.manifest, hostile))
    other = {
        "artifact": artifact.path,
        "file": artifact.path / fmt.MANIFEST,
        "entry": theirs.packages.packages / FUNCTION / theirs.packages.publish(HEADER, b"{}", b"body"),
    }[what]
    for parent, folders, files in os.walk(theirs.root):
        for name in (".", *folders, *files):
            os.chown(os.path.join(parent, name), STRANGER, THIRD)
    done, libc = threading.Event(), ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(mine), os.fsencode(other)
    if libc.renameat2(-100, names[0], -100, names[1], RENAME_EXCHANGE) != 0:
        pytest.skip("NOT RUN: this file system cannot exchange two files")

    def exchange() -> None:
        while not done.is_set():
            libc.renameat2(-100, names[0], -100, names[1], RENAME_EXCHANGE)

    exchanging = threading.Thread(target=exchange)
    exchanging.start()
    outcomes = set()
    try:
        for _ in range(tries(150, 20_000)):
            try:
                if what == "entry":
                    outcomes.add(store.packages.read(FUNCTION, trusted.entry).body)
                else:
                    outcomes.update(store.read_files(found)[fmt.BUNDLE] for found in store.lookup(KEY))
            except UntrustedStore:
                outcomes.add(b"refused")
            except (FileNotFoundError, StoreError):
                outcomes.add(b"miss")
    finally:
        done.set()
        exchanging.join()
    assert outcomes <= {b"refused", b"miss", payload().files[fmt.BUNDLE], b"body"}, outcomes


@needs_root
@pytest.mark.fault("untrusted-files")
@pytest.mark.parametrize("place", [".", "artifacts", "tmp", "quarantine"])
def test_nothing_is_written_into_a_folder_of_another_user(store: Store, place: str) -> None:
    store.prepare()
    os.chown(store.root / place, STRANGER, -1)
    for publish in (lambda: store.publish(payload()), lambda: store.publish_failure(failure())):
        with pytest.raises(UntrustedStore):
            publish()
    assert os.listdir(store.artifacts) == [] and os.listdir(store.tmp) == []


@needs_root
@pytest.mark.fault("untrusted-files")
def test_base_of_another_user_is_not_used(tmp_path: Path) -> None:
    base = TrustedStore(tmp_path / "base")
    problems: list[str] = []
    store = Store(tmp_path / "own", [base.store.root], problems.append)
    assert store.lookup(KEY) and store.packages.names(FUNCTION) and problems == []
    os.chown(base.store.root, STRANGER, -1)
    assert store.lookup(KEY) == [] and store.packages.names(FUNCTION) == []
    assert any(str(STRANGER) in problem for problem in problems)


@pytest.mark.fault("untrusted-files")
@pytest.mark.parametrize("folder", ["artifacts", "packages", "tmp", "quarantine", "scratch", "runs", "jobs"])
def test_clear_and_eviction_follow_no_link(trusted: TrustedStore, tmp_path: Path, folder: str) -> None:
    """A link in the store leads to a folder of the user. Nothing in this folder is removed."""
    outside = tmp_path / "outside"
    for path in (outside / "f" / "file", outside / f"{KEY}.0" / "file", outside / f"{KEY}.failed"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("keep")
        os.utime(path, (1, 1))
    before = sorted(outside.rglob("*"))
    place = trusted.store.root / folder
    place.mkdir(mode=0o700, exist_ok=True)
    (place / ("ab" * 32)).symlink_to(outside)
    (place / f"{KEY}.5").symlink_to(outside)
    eviction.evict(trusted.store, 0, 0)
    eviction.remove(trusted.store, KEY)
    run_records.begin(trusted.store.root, "another run")
    lines.drop_oldest(place, 1, place / "none")
    eviction.clear(trusted.store, with_scratch=True)
    assert sorted(outside.rglob("*")) == before
