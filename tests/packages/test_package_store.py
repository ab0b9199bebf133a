"""The files of packages: equal entries are one, writers lose nothing of each other's, a killed writer harms nobody."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from precompiled.errors import CorruptArtifact, UntrustedStore
from precompiled.package import format as fmt
from precompiled.package.store import PackageStore

FUNCTION = fmt.function_key("program", "f", "0" * 64, one_graph=False)


def header(**more: object) -> fmt.Header:
    return fmt.Header(FUNCTION, "program", "f", "0" * 64, False, "compiled", {"torch": "2.13.0"}, **more)  # type: ignore[arg-type]


def publish_all(root: str, writer: int) -> None:
    store = PackageStore(Path(root))
    for number in range(8):
        store.publish(header(), b"{}", f"writer {writer} entry {number}".encode())
        store.publish(header(), b"{}", b"the same of all")


def test_an_entry_comes_back_whole(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    name = store.publish(header(artifacts=["1" * 64]), b"{}", b"body")
    assert store.names(FUNCTION) == [name]
    entry = store.read(FUNCTION, name)
    assert (entry.header.artifacts, entry.body) == (["1" * 64], b"body")
    assert [item.name for item in store.entries()] == [name]


def test_equal_entries_are_one(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    assert store.publish(header(), b"{}", b"body") == store.publish(header(), b"{}", b"body")
    assert len(store.names(FUNCTION)) == 1


def test_eight_writers_lose_nothing(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("call", ["os.open", "os.fsync", "os.rename", "os.mkdir"])
def test_a_writer_killed_at_any_point_leaves_a_good_store(tmp_path: Path, call: str) -> None:
    store = PackageStore(tmp_path)
    kept = store.publish(header(), b"{}", b"before")
    program = f"""
import os, signal
from pathlib import Path
from precompiled.package.store import PackageStore
from tests_header import header
original = {call}
def killing(*arguments, **named):
    if {call!r} != "os.open" or arguments[1] & os.O_CREAT:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **named)
{call} = killing
PackageStore(Path({str(tmp_path)!r})).publish(header("other"), b"[]", b"after" * 1000)
"""
    (tmp_path / "tests_header.py").write_text(
        "from precompiled.package import format as fmt\n"
        "def header(name):\n"
        f"    return fmt.Header({FUNCTION!r}, 'program', name, '0' * 64, 'compiled', {{}})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False)
    assert done.returncode == -signal.SIGKILL
    for name in store.names(FUNCTION):
        store.read(FUNCTION, name)
    assert kept in store.names(FUNCTION)
    store.publish(header(), b"{}", b"afterwards")
    assert len(store.names(FUNCTION)) == 2


def test_an_altered_entry_is_put_away(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    name = store.publish(header(), b"{}", b"body")
    path = tmp_path / "packages" / FUNCTION / name
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptArtifact, match="digest"):
        store.read(FUNCTION, name)
    assert store.names(FUNCTION) == []
    assert list((tmp_path / "quarantine").iterdir())


@pytest.mark.parametrize("what", ["entry", "function", "packages"])
def test_what_others_can_write_is_not_read(tmp_path: Path, what: str) -> None:
    store = PackageStore(tmp_path)
    name = store.publish(header(), b"{}", b"body")
    place = {"packages": "packages", "function": f"packages/{FUNCTION}", "entry": f"packages/{FUNCTION}/{name}"}[what]
    (tmp_path / place).chmod(0o777)
    with pytest.raises(UntrustedStore):
        store.read(FUNCTION, name)


def test_an_entry_under_another_functions_name_is_refused(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    name = store.publish(header(), b"{}", b"body")
    other = "f" * 64
    (tmp_path / "packages" / FUNCTION).rename(tmp_path / "packages" / other)
    with pytest.raises(CorruptArtifact):
        store.read(other, name)


def test_clear_and_budget(tmp_path: Path) -> None:
    store = PackageStore(tmp_path)
    names = [store.publish(header(), b"{}", os.urandom(1000)) for _ in range(4)]
    for age, name in enumerate(names):
        path = tmp_path / "packages" / FUNCTION / name
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
    assert 0 < store.shrink(2500) <= 2500
    assert len(store.names(FUNCTION)) < len(names)
    assert set(store.names(FUNCTION)) <= set(names[2:])
    assert store.clear() == len(store.names(FUNCTION)) or store.names(FUNCTION) == []
    assert list(store.entries()) == []
