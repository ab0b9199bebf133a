"""Tests of the two progress lines of a first run, on a real pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TextIO

import pytest
from support_host import Host
from support_terminal import on_terminal

from precompiled.client import progress as progress_of_a_client
from precompiled.client.ledger import GraphCalls, GraphReport
from precompiled.client.progress import PATIENCE_S, Progress
from precompiled.client.swap import Event

pytestmark = pytest.mark.integration

PROGRAM = """\
import sys, threading
import torch
import precompiled

precompiled.enable()

@torch.compile
def step(x):
    return (x * {factor}).relu() + 1

x = torch.ones(8, 16)
step(x)
step(x)
assert precompiled.wait(300)
step(x)
for thread in threading.enumerate():
    if thread.name == "precompiled-swap":
        thread.join()
print("@done", flush=True)
"""


def test_first_run_announces_eager_and_the_first_compiled_step(host: Host) -> None:
    """This run also starts the daemon and its worker, so the graph stays pending for a measurable time."""
    file = host.root / "train.py"
    file.write_text(PROGRAM.format(factor=2))
    with on_terminal([sys.executable, str(file)], host.environment(), host.root) as terminal:
        assert terminal.ended() == 0, terminal.written
        lines = terminal.written.replace("\r", "").splitlines()
    ours = [line for line in lines if line.startswith("precompiled: ")]
    assert ours[0] == "precompiled: 1 graph compiles in the background; running eager"
    assert re.fullmatch(r"precompiled: compiled from step 3 on, after \d+\.\d s|.* after \d min", ours[1])
    assert len(ours) == 2 and lines[-1] == "@done"

    file.write_text(PROGRAM.format(factor=3))  # a new graph in a process without a terminal must print nothing
    command = [sys.executable, str(file)]
    done = subprocess.run(command, env=host.environment(), capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "@done\n" and done.stderr == ""


@dataclass
class Item:
    calls: GraphCalls
    since: float = field(default_factory=lambda: time.monotonic() - PATIENCE_S)


def pending() -> Item:
    item = Item(GraphCalls(GraphReport(id="1", name="f [0/0]")))
    item.calls.swap.on(Event.MISS)
    item.calls.calls = 40
    return item


def swapped(item: Item) -> None:
    item.calls.swap.on(Event.PUBLISHED)
    item.calls.swap.on(Event.LOADED)
    item.calls.calls_before_flip = item.calls.calls


@dataclass
class Pty:
    master: int
    stderr: TextIO

    def said(self) -> list[str]:
        """Return the lines so far. A terminal's output can be read as soon as it is written."""
        os.write(self.stderr.fileno(), b"@\n")
        data = b""
        while not data.endswith(b"@\r\n"):
            data += os.read(self.master, 4096)
        return [line for line in data.decode().replace("\r", "").splitlines() if line != "@"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pty]:
    master, slave = pty.openpty()
    with open(slave, "w") as stderr:
        # Replace ``sys`` in the module under test, because pytest replaces sys.stderr between a fixture and its test.
        monkeypatch.setattr(progress_of_a_client, "sys", SimpleNamespace(stderr=stderr))
        yield Pty(master, stderr)
    os.close(master)


def test_several_graphs_are_announced_once(terminal: Pty) -> None:
    progress, items = Progress(wanted=True, waits=False), [pending(), pending(), pending()]
    for _ in range(2):
        progress.look(items)
    assert terminal.said() == ["precompiled: 3 graphs compile in the background; running eager"]
    for item in items:
        swapped(item)
    progress.look([])
    (line,) = terminal.said()
    assert line.startswith("precompiled: compiled from step 41 on, after 1.")
    progress.look([pending()])
    progress.look([])
    assert terminal.said() == []


def test_graphs_with_different_call_counts_name_no_step(terminal: Pty) -> None:
    progress, items = Progress(wanted=True, waits=False), [pending(), pending()]
    items[0].calls.calls = 120
    progress.look(items)
    for item in items:
        swapped(item)
    progress.look([])
    assert re.fullmatch(r"precompiled: compiled after 1\.\d s", terminal.said()[1])


def test_graphs_that_stay_eager_are_not_reported_as_compiled(terminal: Pty) -> None:
    progress, items = Progress(wanted=True, waits=False), [pending(), pending()]
    progress.look(items)
    swapped(items[0])
    items[1].calls.swap.on(Event.FAILED)
    progress.look([])
    line = terminal.said()[1]
    assert line.startswith("precompiled: 1 of 2 graphs compiled after 1.")
    assert line.endswith("; 1 stays eager; `precompiled explain --run last` says why")


def test_program_that_waits_is_announced(terminal: Pty) -> None:
    progress, item = Progress(wanted=True, waits=True), pending()
    progress.look([item])
    swapped(item)
    progress.look([])
    first, second = terminal.said()
    assert first == "precompiled: 1 graph compiles in the background; the program waits for it"
    assert second.startswith("precompiled: compiled after 1.")


@pytest.mark.parametrize("is_announced", [True, False])
def test_program_that_ends_before_its_compile_is_announced(terminal: Pty, is_announced: bool) -> None:
    progress, item = Progress(wanted=True, waits=False), pending()
    if is_announced:
        progress.look([item])
    for _ in range(2):
        progress.ended(2, lambda: True)
    said = "precompiled: the program ended before 2 graphs were compiled; the daemon continues, for the next run"
    assert terminal.said()[is_announced:] == [said]


def test_program_that_ends_without_a_daemon_is_announced(terminal: Pty) -> None:
    Progress(wanted=True, waits=False).ended(1, lambda: False)
    said = "precompiled: the program ended before 1 graph was compiled; no daemon runs, so the next run submits again"
    assert terminal.said() == [said]


def test_a_program_that_ends_without_pending_graphs_says_nothing(terminal: Pty) -> None:
    Progress(wanted=True, waits=False).ended(0, lambda: True)
    Progress(wanted=False, waits=False).ended(1, lambda: True)
    assert terminal.said() == []


def test_quick_compile_is_not_announced(terminal: Pty) -> None:
    progress, item = Progress(wanted=True, waits=False), pending()
    item.since = time.monotonic() + 60
    progress.look([item])
    swapped(item)
    progress.look([])
    assert terminal.said() == []


def test_progress_is_off_by_setting_and_for_other_ranks(terminal: Pty, monkeypatch: pytest.MonkeyPatch) -> None:
    Progress(wanted=False, waits=False).look([pending()])
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    Progress(wanted=True, waits=False).look([pending()])
    assert terminal.said() == []


def test_progress_waits_for_the_end_of_a_prompt(terminal: Pty) -> None:
    """readline and full-screen programs edit a line or the screen. A progress line would spoil this line or screen."""
    usual = termios.tcgetattr(terminal.master)
    termios.tcsetattr(terminal.master, termios.TCSANOW, [*usual[:3], usual[3] & ~termios.ICANON, *usual[4:]])
    progress, item = Progress(wanted=True, waits=False), pending()
    progress.look([item])
    assert terminal.said() == []
    termios.tcsetattr(terminal.master, termios.TCSANOW, usual)
    progress.look([item])
    assert len(terminal.said()) == 1


def test_progress_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = open(os.devnull, "w")  # noqa: SIM115 - that is what is tested
    closed.close()
    for stderr in (None, closed, object()):
        monkeypatch.setattr(progress_of_a_client, "sys", SimpleNamespace(stderr=stderr))
        progress = Progress(wanted=True, waits=False)
        progress.look([pending()])
        progress.look([])
