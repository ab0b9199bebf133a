"""Tests of the turns to compile a Triton kernel, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support_store import KEY, OTHER

from precompiled.store import kernel_turns

HOLDER = """
import sys
from pathlib import Path
from precompiled.store import kernel_turns
turn = kernel_turns.take(Path(sys.argv[1]), sys.argv[2])
print("holds" if turn else "waited", flush=True)
for line in sys.stdin:
    turn.beat()
if turn:
    turn.end()
"""


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that holds the turn until its standard input ends."""
    command = [sys.executable, "-c", HOLDER, str(folder), KEY]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "holds\n"
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate()


class Waiter(threading.Thread):
    """Takes the turn in a thread. ``looked``: set when the thread has found the turn taken."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._folder, self.looked = folder, threading.Event()
        real = kernel_turns._is_suspended

        def looks(fd: int) -> bool:
            found = real(fd)
            self.looked.set()
            return found

        monkeypatch.setattr(kernel_turns, "_is_suspended", looks)
        self.start()

    def run(self) -> None:
        self.turn = kernel_turns.take(self._folder, KEY)

    def result(self) -> kernel_turns.KernelTurn | None:
        self.join(60)
        assert not self.is_alive()
        return self.turn


def test_only_one_process_has_the_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder(tmp_path) as process:
        waiter = Waiter(tmp_path, monkeypatch)
        assert waiter.looked.wait(60) and waiter.is_alive()
        other = kernel_turns.take(tmp_path, OTHER)
        assert other is not None, "turns of two kernels are independent"
        other.end()
        process.communicate()
        assert waiter.result() is None, "the kernel is in the store by now"
    assert list(tmp_path.iterdir()) == []


def test_turn_of_a_killed_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with holder(tmp_path) as process:
        waiter = Waiter(tmp_path, monkeypatch)
        assert waiter.looked.wait(60)
        process.kill()
        assert waiter.result() is None
    turn = kernel_turns.take(tmp_path, KEY)
    assert turn is not None, "a later process gets the turn"
    turn.end()


def test_nothing_waits_for_a_suspended_process(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert kernel_turns.take(tmp_path, KEY) is None


def test_nothing_waits_for_a_process_without_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_turns, "STALL_S", 0.2)
    with holder(tmp_path):
        assert kernel_turns.take(tmp_path, KEY) is None


def test_process_waits_while_the_compile_proceeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each look of the waiting process, a stage of the compile ends. So no look finds a stalled compile."""
    turn = kernel_turns.take(tmp_path, KEY)
    assert turn is not None
    turn.beat()
    looks, real = 0, kernel_turns._is_locked

    def proceeds(fd: int) -> bool:
        nonlocal looks
        looks += 1
        if looks == 5:
            turn.end()
        os.utime(fd, (looks, looks))  # like ``beat``, but with a time that differs on any file system
        return real(fd)

    monkeypatch.setattr(kernel_turns, "STALL_S", 0.0)
    monkeypatch.setattr(kernel_turns, "_is_locked", proceeds)
    assert kernel_turns.take(tmp_path, KEY) is None
    assert looks == 5


def test_turn_ends_with_its_object(tmp_path: Path) -> None:
    turn = kernel_turns.take(tmp_path, KEY)
    assert turn is not None
    del turn
    again = kernel_turns.take(tmp_path, KEY)
    assert again is not None
    again.end()
    again.end()  # idempotent


def test_child_of_a_fork_does_not_end_the_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = kernel_turns.take(tmp_path, KEY)
    assert turn is not None
    if (child := os.fork()) == 0:
        turn.end()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    monkeypatch.setattr(kernel_turns, "STALL_S", 0.0)
    assert kernel_turns.take(tmp_path, KEY) is None, "the parent still has the turn"
    turn.end()
    again = kernel_turns.take(tmp_path, KEY)
    assert again is not None
    again.end()


def test_descriptor_that_the_program_reuses_is_left_alone(tmp_path: Path) -> None:
    """A program that turns into a daemon closes all descriptors, and opens files under the same numbers."""
    turn = kernel_turns.take(tmp_path, KEY)
    assert turn is not None
    fd = turn._fd
    own = os.open(tmp_path / "own", os.O_CREAT | os.O_WRONLY)
    os.dup2(own, fd)
    turn.end()
    os.fstat(fd)  # raises if the descriptor was closed
    os.close(fd)
    os.close(own)


def test_process_waits_for_a_worker_no_longer_than_its_limit(tmp_path: Path) -> None:
    worker = kernel_turns.take(tmp_path, KEY, is_worker=True)
    assert worker is not None and kernel_turns.find_state(tmp_path, KEY) is kernel_turns.TurnState.HELD
    assert kernel_turns.take(tmp_path, KEY, limit_s=0.0) is None, "the turn has not ended"
    worker.end()
    with holder(tmp_path) as process:
        threading.Timer(0.2, process.kill).start()
        assert kernel_turns.take(tmp_path, KEY, limit_s=0.0) is None
        assert process.wait(60) != 0, "the limit does not apply to a program's turn"
