"""Tests of turns among the workers of several ranks: one worker compiles while the others wait. The workers are
separate processes, because a lock belongs to a process.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from precompiled.store.rank_turns import turn

OTHER = """
import sys
from pathlib import Path
from precompiled.store.rank_turns import turn
print("begun", flush=True)
with turn(Path(sys.argv[1]), "graph") as found:
    print(found.waited, flush=True)
    sys.stdin.readline()
    found.end()
    print("ended", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", OTHER, str(tmp_path / "turns")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_second_process_waits_until_the_first_ends_its_turn(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    with turn(tmp_path / "turns", "graph") as mine, turn(tmp_path / "turns", "another graph") as another:
        assert mine is not None and another is not None and not mine.waited and not another.waited
        assert line(other) == "begun"
        until_it_waits(other)
        mine.end()  # as a worker whose artifact cannot serve the other ranks
        assert line(other) == "True"
    assert not list((tmp_path / "turns").iterdir())


def test_killed_process_ends_its_turn(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    assert [line(other), line(other)] == ["begun", "False"]
    other.kill()
    with turn(tmp_path / "turns", "graph") as mine:
        assert mine is not None


def test_turn_reports_whether_it_waited(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    assert [line(other), line(other)] == ["begun", "False"]
    waiting = subprocess.Popen(
        [sys.executable, "-c", OTHER, str(tmp_path / "turns")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert line(waiting) == "begun"
        until_it_waits(waiting)
        tell(other)
        assert line(other) == "ended" and line(waiting) == "True"
    finally:
        waiting.kill()
        waiting.communicate()


def until_it_waits(process: subprocess.Popen[str]) -> None:
    """Wait until the kernel lists the process as waiting for a lock."""
    deadline = time.monotonic() + 60
    while not any("->" in text and f" {process.pid} " in text for text in Path("/proc/locks").read_text().splitlines()):
        assert process.poll() is None and time.monotonic() < deadline


def test_no_turn_without_a_name_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder, name in ((tmp_path, ""), (tmp_path / "file", "graph")):
        with turn(folder, name) as found:
            assert found is None
