"""Tests of the lookup of a process's own Triton kernels. tests/gpu/test_triton_kernels.py runs the kernels."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
from support_session import ThisProcess, this_process

from precompiled.client.triton_kernels import KernelLookup
from precompiled.store import kernel_turns
from precompiled.store.triton_kernels import TritonKernels

KEY, OTHER = "a" * 64, "b" * 64
FILES = {"added.json": b"{}", "added.cubin": b"\x7fELF"}


@pytest.fixture
def here() -> Iterator[ThisProcess]:
    with this_process() as found:
        yield found


@pytest.fixture
def lookup(here: ThisProcess) -> KernelLookup:
    return KernelLookup(here.session.settings)


@contextmanager
def warned(code: str) -> Iterator[None]:
    with pytest.warns(RuntimeWarning, match=f"Triton compiles kernels in this process \\({code}\\)"):
        yield


def test_first_process_gets_the_turn_and_the_second_the_kernel(here: ThisProcess, lookup: KernelLookup) -> None:
    files, turn = lookup.find(KEY, in_turn=True)
    assert files is None and turn is not None
    lookup.publish(KEY, "added", FILES)
    turn.end()
    other = KernelLookup(here.session.settings)
    assert other.find(KEY, in_turn=True) == (FILES, None)
    assert lookup.used == other.used == {KEY} and here.counted("fallbacks") == {}


def test_thread_whose_compile_failed_gets_its_turn_again(lookup: KernelLookup) -> None:
    _files, failed = lookup.find(KEY, in_turn=True)  # the name keeps the turn, as an exception does
    files, turn = lookup.find(KEY, in_turn=True)
    assert failed is not None and files is None and turn is not None and turn is not failed
    turn.end()


def test_times_are_looked_up_without_a_turn(lookup: KernelLookup) -> None:
    assert lookup.find(KEY, in_turn=False) == (None, None)
    _files, turn = lookup.find(KEY, in_turn=True)
    assert turn is not None, "no turn was left behind"


@pytest.mark.reason("kernel-corrupt")
def test_altered_kernel_is_counted_and_compiled(here: ThisProcess, lookup: KernelLookup) -> None:
    lookup.publish(KEY, "added", FILES)
    path = TritonKernels(here.session.settings.cache_dir).path(KEY)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with warned("kernel-corrupt"):
        files, turn = lookup.find(KEY, in_turn=True)
    assert files is None and turn is not None
    assert here.counted("fallbacks") == {"kernel-corrupt": 1}


def test_store_that_cannot_be_written_is_counted(here: ThisProcess, lookup: KernelLookup) -> None:
    lookup._store.prepare()
    lookup._store.kernels.rmdir()
    lookup._store.kernels.write_text("a file")
    with warned("store-untrusted"):
        assert lookup.find(KEY, in_turn=True) == (None, None)
        lookup.publish(KEY, "added", FILES)
    counted = here.counted("fallbacks")
    assert counted.keys() <= {"store-untrusted", "store-unwritable"} and lookup.used == set(), counted


def test_error_that_cannot_be_counted_is_not_raised(lookup: KernelLookup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precompiled.client.process.PROCESS.session", None)
    monkeypatch.setenv("PRECOMPILED_WORKERS", "many")
    lookup.failed(OSError(28, "No space left on device"))


def test_process_asks_the_remote_only_for_a_limited_time(here: ThisProcess, tmp_path: Path) -> None:
    """No helper runs, so each request takes all the time that is left of the limit."""
    remote = replace(here.session.settings, remote=f"file://{tmp_path}", remote_ahead_s=0.05)
    lookup = KernelLookup(remote)
    starting = remote.cache_dir / "remote" / "starting"
    lookup._store.prepare()
    starting.parent.mkdir()
    starting.touch()
    for key in (KEY, OTHER):
        files, turn = lookup.find(key, in_turn=True)
        assert files is None and turn is not None
        turn.end()
    assert lookup._left_s <= 0
    assert here.counted("fallbacks") == {}


class _TimeOut(Exception):
    pass


def test_signal_handler_of_the_program_ends_the_wait(
    here: ThisProcess, lookup: KernelLookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookup._store.prepare()
    script = f"""
import sys
from pathlib import Path
from precompiled.store import kernel_turns
turn = kernel_turns.take(Path({str(lookup._store.tmp)!r}), {KEY!r})
print(turn is not None, flush=True)
sys.stdin.read()
"""

    def raises(number: int, frame: FrameType | None) -> None:
        raise _TimeOut

    real = kernel_turns._is_suspended

    def looks(fd: int) -> bool:
        signal.raise_signal(signal.SIGALRM)
        return real(fd)

    monkeypatch.setattr(kernel_turns, "_is_suspended", looks)
    before = signal.signal(signal.SIGALRM, raises)
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "True\n"
        open_before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(_TimeOut):
            lookup.find(KEY, in_turn=True)
        assert len(os.listdir("/proc/self/fd")) == open_before
    finally:
        signal.signal(signal.SIGALRM, before)
        holder.communicate("")
    assert here.counted("fallbacks") == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _files, turn = lookup.find(KEY, in_turn=True)
    assert turn is not None
