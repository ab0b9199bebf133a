"""Tests of the package store on disk.

Equal entries are stored once. Concurrent writers lose no entry. A killed writer leaves the store intact.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precompiled.core.errors import CorruptArtifact, StoreError, UntrustedStore
from precompiled.store import package_format as fmt
from precompiled.store.packages import PackageStore

FUNCTION = fmt.function_key("program", "f", "0" * 64, one_graph=False)


def header(**more: object) -> fmt.Header:
    return fmt.Header(FUNCTION, "program", "f", "0" * 64, False, "compiled", {"torch": "2.13.0"}, **more)  # type: ignore[arg-type]


def publish_all(root: str, writer: int) -> None:
    store = PackageStore(Path(root))
    for number in range(8):
        store.publish(header(), b"{}", f"writer {writer} entry {number}".encode())
        store.publish(header(), b"{}", b"the same of all")


def test_published_entry_is_read_back_unchanged(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    name = store.publish(header(artifacts=["1" * 64]), b"{}", b"body")
    assert store.names(FUNCTION) == [name]
    entry = store.read(FUNCTION, name)
    assert (entry.header.artifacts, entry.body) == (["1" * 64], b"body")
    assert [item.name for item in store.entries()] == [name]


def test_equal_entries_are_stored_once(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    assert store.publish(header(), b"{}", b"body") == store.publish(header(), b"{}", b"body")
    assert len(store.names(FUNCTION)) == 1


@pytest.mark.integration
def test_eight_concurrent_writers_lose_no_entry(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=publish_all, args=(str(tmp_path), number)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    store = PackageStore(tmp_path)
    bodies = {store.read(FUNCTION, name).body for name in store.names(FUNCTION)}
    assert bodies == {b"the same of all"} | {f"writer {w} entry {n}".encode() for w in range(8) for n in range(8)}


def test_two_concurrent_writers_of_equal_entries_leave_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writer removes older entries that equal its own. Two concurrent writers must not remove both entries."""
    both = threading.Barrier(2)
    write = PackageStore._write

    def write_then_meet(self: PackageStore, function: str, name: str, content: bytes) -> None:
        write(self, function, name, content)
        both.wait(30)

    monkeypatch.setattr(PackageStore, "_write", write_then_meet)
    with ThreadPoolExecutor(2) as pool:
        store = PackageStore(tmp_path)
        names = set(pool.map(lambda body: store.publish(header(meaning="1"), b"{}", body), (b"1", b"2")))
    monkeypatch.undo()
    left = store.names(FUNCTION)
    assert left and names.issuperset(left)
    for name in left:
        os.utime(tmp_path / "packages" / FUNCTION / name, (1, 1))  # older, because clocks of file systems are coarse
    last = store.publish(header(meaning="1"), b"{}", b"3")
    assert store.names(FUNCTION) == [last]


def test_new_entry_stays_even_if_the_clock_went_back(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    old = store.publish(header(meaning="1"), b"{}", b"1")
    os.utime(tmp_path / "packages" / FUNCTION / old, (2**32, 2**32))
    new = store.publish(header(meaning="1"), b"{}", b"2")
    assert new in store.names(FUNCTION)


def test_concurrent_eviction_does_not_break_a_writer(tmp_path: Path) -> None:
    """Eviction removes empty directories. While a function's first entry is being written, its directory is empty."""
    store, done = PackageStore(tmp_path), threading.Event()

    def evict() -> None:
        while not done.is_set():
            PackageStore(tmp_path).shrink(1 << 30)

    evictor = threading.Thread(target=evict)
    evictor.start()
    try:
        for number in range(200):
            function = fmt.function_key("program", f"f{number}", "0" * 64, one_graph=False)
            (store.packages / function).mkdir(parents=True, mode=0o700)
            os.utime(store.packages / function, (0, 0))  # old enough for eviction
            name = store.publish(replace(header(), function=function), b"{}", b"body")
            assert store.names(function) == [name]
    finally:
        done.set()
        evictor.join()


@pytest.mark.fault("killed-at-a-call")
def test_a_writer_killed_at_any_point_leaves_a_good_store(tmp_path: Path) -> None:
    """The first run is killed before its first call that changes the disk, the next run before its second, and so on,
    until a run completes.
    """
    program = f"""
import os, signal, sys
from pathlib import Path
from precompiled.store import package_format as fmt
from precompiled.store.packages import PackageStore
left = int(sys.argv[1])
def killing(original):
    def call(*arguments, **named):
        global left
        if original is not opens or arguments[1] & os.O_CREAT:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)
    return call
opens = os.open
for name in ("open", "fsync", "rename", "replace", "mkdir", "unlink"):
    setattr(os, name, killing(getattr(os, name)))
header = fmt.Header(
    {FUNCTION!r}, "program", "f", "0" * 64, False, "compiled", {{"torch": "2.13.0"}}, meaning="m", sources="s"
)
PackageStore(Path(sys.argv[2])).publish(header, b"[]", b"after" * 1000)
"""
    points = 0
    while True:
        points += 1
        root = tmp_path / str(points)
        store = PackageStore(root)
        kept = store.publish(header(), b"{}", b"before")
        replaced = store.publish(header(meaning="m", sources="s"), b"{}", b"means the same")
        done = subprocess.run([sys.executable, "-c", program, str(points), str(root)], check=False)
        bodies = {store.read(FUNCTION, name).body for name in store.names(FUNCTION)}
        assert b"before" in bodies and kept in store.names(FUNCTION)
        assert bodies - {b"before"} <= {b"means the same", b"after" * 1000} and len(bodies) > 1
        store.publish(header(), b"{}", b"afterwards")
        assert b"afterwards" in {store.read(FUNCTION, name).body for name in store.names(FUNCTION)}
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
    assert points > 8
    assert replaced not in store.names(FUNCTION)


@pytest.mark.fault("altered-bytes")
def test_altered_entry_is_quarantined(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    name = store.publish(header(), b"{}", b"body")
    path = tmp_path / "packages" / FUNCTION / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptArtifact, match="digest"):
        store.read(FUNCTION, name)
    assert store.names(FUNCTION) == []
    assert list((tmp_path / "quarantine").iterdir())


@pytest.mark.parametrize("what", ["entry", "function", "packages"])
def test_entry_that_others_can_write_is_not_read(tmp_path: Path, what: str) -> None:
    store = PackageStore(tmp_path)
    name = store.publish(header(), b"{}", b"body")
    place = {"packages": "packages", "function": f"packages/{FUNCTION}", "entry": f"packages/{FUNCTION}/{name}"}[what]
    (tmp_path / place).chmod(0o777)
    with pytest.raises(UntrustedStore):
        store.read(FUNCTION, name)


@pytest.mark.fault("damaged-files")
def test_an_entry_under_another_functions_name_is_refused(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    name = store.publish(header(), b"{}", b"body")
    other = "f" * 64
    (tmp_path / "packages" / FUNCTION).rename(tmp_path / "packages" / other)
    with pytest.raises(CorruptArtifact):
        store.read(other, name)


def test_shrink_removes_the_oldest_entries_and_clear_removes_all(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    names = [store.publish(header(), b"{}", os.urandom(1000)) for _ in range(4)]
    for age, name in enumerate(names):
        path = tmp_path / "packages" / FUNCTION / name
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
    assert 0 < store.shrink(2500) <= 2500
    assert len(store.names(FUNCTION)) < len(names)
    assert set(store.names(FUNCTION)) <= set(names[2:])
    left = len(store.names(FUNCTION))
    assert store.clear() == left > 0
    assert list(store.entries()) == [] and list((tmp_path / "packages").iterdir()) == []


def test_disabled_function_stays_disabled_when_the_store_shrinks(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    store.refuse(header(), "it gave another result")
    os.utime(tmp_path / "packages" / FUNCTION / "refused", (1, 1))
    store.publish(header(), b"{}", os.urandom(1000))
    assert store.shrink(0) == 0
    assert store.names(FUNCTION) == []
    assert store.refused(FUNCTION) == "it gave another result"
    assert store.clear() == 0 and store.refused(FUNCTION) is None


def test_entry_evicted_during_a_listing_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PackageStore(tmp_path)
    names = [store.publish(header(), b"{}", os.urandom(100)) for _ in range(3)]
    original = os.stat

    def stat(path: object, **named: object) -> os.stat_result:
        if path == names[1]:
            raise FileNotFoundError(2, "evicted", path)
        return original(path, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    assert set(store.names(FUNCTION)) == {names[0], names[2]}


@pytest.mark.parametrize("plant", ["fifo", "link", "long"])
def test_files_that_are_not_entries_are_ignored(tmp_path: Path, plant: str) -> None:
    store = PackageStore(tmp_path)
    name = store.publish(header(meaning="m"), b"{}", b"body")
    strange = tmp_path / "packages" / FUNCTION / f"{'ef' * 32}.entry"
    if plant == "fifo":
        os.mkfifo(strange, 0o600)
    elif plant == "link":
        strange.symlink_to("/dev/zero")
    else:
        strange.touch(0o600)
        os.truncate(strange, 8 << 30)  # a huge file without a newline, so a reader of lines would read all of it
    assert store.header(FUNCTION, strange.name) is None
    assert store.header(FUNCTION, name) == header(meaning="m")
    with pytest.raises((CorruptArtifact, UntrustedStore)):
        store.read(FUNCTION, strange.name)
    assert store.publish(header(meaning="m", sources="1"), b"{}", b"other") in store.names(FUNCTION)


@pytest.mark.fault("failing-calls")
def test_failure_of_each_system_call_raises_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PackageStore(tmp_path)
    name = store.publish(header(), b"{}", b"body")
    calls = fails_at = 0

    def failing(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments, **named)

        return call

    while calls >= fails_at:
        fails_at, calls = fails_at + 1, 0
        with monkeypatch.context() as patch:
            for function in ("open", "stat", "lstat", "fstat", "listdir"):
                patch.setattr(os, function, failing(getattr(os, function)))
            with suppress(StoreError):
                assert store.refused(FUNCTION) is None
                assert [store.read(FUNCTION, found).body for found in store.names(FUNCTION)] == [b"body"]
                assert store.functions() == [FUNCTION]
    assert fails_at > 10 and store.names(FUNCTION) == [name]
