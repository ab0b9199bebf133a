"""Tests of leases on Triton kernels: of the hosts that lack a kernel, one compiles it, and no host waits in vain.

Real processes hold the turns, and the helper's answers are read as its clients read them.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support_daemon import wait_until
from support_remote import host, memory
from support_store import KEY

from precompiled.remote import kernel_leases, lease
from precompiled.remote.claims import Claims
from precompiled.remote.envelope import KERNEL
from precompiled.remote.errors import RemoteError
from precompiled.remote.kernel_leases import KernelLeases
from precompiled.remote.lease import Claim, Found
from precompiled.remote.opened_remote import OpenedRemote
from precompiled.remote.puts import Puts
from precompiled.store import kernel_turns
from precompiled.store.kernel_turns import TurnState
from precompiled.store.triton_kernels import TritonKernels, seal

FILES = {"added.json": b"{}", "added.cubin": b"\x7fELF"}
COMPILER = """
import sys
from pathlib import Path
from precompiled.store import kernel_turns
turn = kernel_turns.take(Path(sys.argv[1]), sys.argv[2])
print("holds" if turn else "waited", flush=True)
sys.stdin.read()
turn.end()
"""


class HostWithHelper:
    """A store, the parts of its helper that serve kernels, and a process with the turn to compile KEY."""

    def __init__(self, root: Path, url: str) -> None:
        self.store = TritonKernels(root)
        self.store.prepare()
        self.remote = OpenedRemote()
        self.remote.transfer = self.there = host(root, url)
        self.remote.done.set()
        self.puts = Puts(self.remote, Claims(self.remote.failed, may_hold=True), lambda: None, wanted=True)
        self._putting = threading.Thread(target=self.puts.run)
        self._putting.start()
        self.leases = KernelLeases(self.remote, self.puts, root, 10.0, lambda: None, may_hold=True)
        self.process = self._start()
        self.answers: list[dict[str, Any]] = []
        self._asking: threading.Thread | None = None

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", COMPILER, str(self.store.tmp), KEY]
        found = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert found.stdout is not None and found.stdout.readline() == "holds\n"
        return found

    def ask(self) -> None:
        """Ask for KEY, as a process with the turn. ``answers`` grows in a thread of the helper."""
        asking = self.leases.answers(KEY, compiles=True)
        self._asking = threading.Thread(target=self._collect, args=(asking,))
        self._asking.start()

    def _collect(self, asking: Iterator[dict[str, Any]]) -> None:
        for answer in asking:
            self.answers.append(answer)

    def found(self) -> bool:
        """The last answer to the process."""
        return bool(wait_until(lambda: [answer for answer in self.answers if "found" in answer])[0]["found"])

    def compile(self) -> None:
        """Publish the kernel, and end the turn, as the process does."""
        self.store.publish(KEY, seal(KEY, "added", FILES))
        self.puts.add({"do": "put-kernel", "key": KEY})
        self.end()

    def end(self) -> None:
        self.process.communicate()
        if self._asking is not None:
            self._asking.join(60)
            assert not self._asking.is_alive(), "the helper still holds the lease"

    def kill(self) -> None:
        self.process.kill()
        self.end()

    @property
    def sizes(self) -> list[int]:
        """The sizes of the leases on KEY, the oldest first."""
        found = sorted(self.there.bucket.listed(f"kernels/{KEY}").items())
        return [size for name, size in found if lease.is_lease(name)]

    def close(self) -> None:
        self.process.kill()
        self.end()
        self.puts.leave(0.0)
        self._putting.join(60)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str, str], HostWithHelper]]:
    with ExitStack() as running:

        def start(name: str, url: str) -> HostWithHelper:
            found = HostWithHelper(tmp_path / name, url)
            running.callback(found.close)
            return found

        yield start


Started = Callable[[str, str], HostWithHelper]


def second_waits(started: Started, url: str) -> tuple[HostWithHelper, HostWithHelper]:
    """Start two hosts. The first host has the lease and compiles the kernel, and the second host waits for the
    kernel.
    """
    a, b = started("a", url), started("b", url)
    a.ask()
    assert not a.found() and len(a.sizes) == 1
    b.ask()
    wait_until(lambda: {} in b.answers, "b sees the lease of a")
    return a, b


def test_second_host_waits_for_the_kernel_that_the_first_compiles(url: str, started: Started) -> None:
    a, b = second_waits(started, url)
    a.compile()
    assert b.found() and b.store.read(KEY) == FILES
    assert a.sizes == [], "the lease was removed"


@pytest.mark.fault("remote")
def test_second_host_compiles_if_the_process_of_the_first_is_killed(url: str, started: Started) -> None:
    a, b = second_waits(started, url)
    a.kill()
    assert not b.found() and len(b.sizes) == 1, "b holds the lease now"
    b.compile()
    assert b.sizes == []


@pytest.mark.fault("remote")
def test_second_host_compiles_if_the_first_host_is_gone(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_leases, "TTL_S", 0.3)
    url = memory()
    b = started("b", url)
    assert Claim(host(b.store.root.parent / "a", url), KEY, kind=KERNEL).look() is Found.MINE
    b.ask()
    assert not b.found() and {} in b.answers
    b.compile()
    assert b.sizes == []


def test_lease_grows_while_the_process_compiles(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_leases, "TTL_S", 0.3)
    a = started("a", memory())
    a.ask()
    assert not a.found()
    [begun] = a.sizes
    wait_until(lambda: a.sizes[0] > begun + 2)
    a.compile()
    assert a.sizes == []


def test_kernel_that_fails_to_compile_is_waited_for_by_no_host(url: str, started: Started) -> None:
    a, b = second_waits(started, url)
    a.end()
    assert not b.found() and b.sizes == [0], "b compiles without a lease"
    b.compile()
    wait_until(lambda: b.sizes == [], "the kernel was put, so the mark of the failure is removed")


@pytest.mark.fault("remote")
def test_remote_that_fails_ends_the_wait_at_once(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    url = memory()
    a, b = started("a", url), started("b", url)
    a.ask()
    assert not a.found()
    b.ask()
    wait_until(lambda: {} in b.answers)

    def refuse(_: str) -> dict[str, int]:
        raise RemoteError("no answer", "", code="remote-timeout")

    with monkeypatch.context() as patch:
        patch.setattr(b.there.bucket, "listed", refuse)
        assert not b.found() and b.there.counts.failed["remote-timeout"] == 1
    a.compile()


@pytest.mark.fault("remote")
def test_lease_whose_answer_reaches_no_process_is_removed(started: Started) -> None:
    a = started("a", memory())
    answers = a.leases.answers(KEY, compiles=True)
    assert next(answers) == {"found": False} and len(a.sizes) == 1
    answers.close()  # type: ignore[attr-defined]  # as if the peer had closed its socket
    assert a.sizes == []


def test_no_host_waits_longer_than_a_stage_of_a_compile_may_take(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_leases, "MAX_THEIRS_S", 0.2)
    url = memory()
    a, b = started("a", url), started("b", url)
    a.ask()
    assert not a.found()
    b.ask()
    assert not b.found() and len(b.sizes) == 1, "only a has a lease"
    b.compile()
    a.compile()


def test_request_without_a_turn_takes_no_lease(started: Started) -> None:
    a = started("a", memory())
    assert list(a.leases.answers(KEY, compiles=False)) == [{"found": False}] and a.sizes == []


def test_turn_of_a_suspended_or_dead_process_is_lost(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    a = started("a", memory())
    assert kernel_turns.find_state(a.store.tmp, KEY) is TurnState.HELD
    with monkeypatch.context() as patch:
        patch.setattr(kernel_turns, "STALL_S", -1.0)
        assert kernel_turns.find_state(a.store.tmp, KEY) is TurnState.LOST, "the compile makes no progress"
    a.process.kill()
    a.process.wait()
    assert kernel_turns.find_state(a.store.tmp, KEY) is TurnState.LOST
    (a.store.tmp / f"{KEY}.turn").unlink()
    assert kernel_turns.find_state(a.store.tmp, KEY) is TurnState.ENDED
