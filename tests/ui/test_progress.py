"""Tests of the progress lines of a first run, and of the line of a run whose graphs all hit, on real
pseudo-terminals.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TextIO

import pytest
from support_host import Host
from support_terminal import on_terminal

from precompiled.client import terminal_lines
from precompiled.client.eager_line import MAX_LINES, EagerLine
from precompiled.client.hit_line import HitLine
from precompiled.client.ledger import GraphCalls, GraphReport
from precompiled.client.progress import MAX_BATCHES, PATIENCE_S, Progress
from precompiled.client.speed_trial import Lost
from precompiled.client.swap import Event
from precompiled.client.terminal_lines import TerminalLines

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


def test_first_run_announces_eager_steps_and_the_compile(host: Host) -> None:
    """This run also starts the daemon and its worker, so the graph stays pending for a measurable time."""
    file = host.root / "train.py"
    file.write_text(PROGRAM.format(factor=2))
    with on_terminal([sys.executable, str(file)], host.environment(), host.root) as terminal:
        assert terminal.ended() == 0, terminal.written
        lines = terminal.written.replace("\r", "").splitlines()
    ours = [line for line in lines if line.startswith("precompiled: ")]
    assert ours[0] == "precompiled: 1 graph compiles in the background; the program waits for it"
    assert re.fullmatch(r"precompiled: compiled after call 2 \(\d+(\.\d s|(\.\d)? min)\)", ours[1])
    assert len(ours) == 2 and lines[-1] == "@done"

    with on_terminal([sys.executable, str(file)], host.environment(), host.root) as terminal:
        assert terminal.ended() == 0, terminal.written
        lines = terminal.written.replace("\r", "").splitlines()
    (artifact,) = host.store.lookup(key_of(host))
    saved = f"{artifact.manifest.compile_s:.{0 if artifact.manifest.compile_s >= 10 else 1}f} s"
    assert lines == ["@done", f"precompiled: 1 of 1 graph from the cache (about {saved} saved)"]

    # A process without a terminal prints nothing, unless the setting requests progress lines.
    file.write_text(PROGRAM.format(factor=3))
    command = [sys.executable, str(file)]
    for progress, expected in (("terminal", ""), ("always", "precompiled: 1 of 1 graph from the cache")):
        done = subprocess.run(
            command,
            env=host.environment({"PRECOMPILED_PROGRESS": progress}),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        assert done.stdout == "@done\n" and done.stderr.startswith(expected) and bool(done.stderr) == bool(expected)


def key_of(host: Host) -> str:
    return next(host.store.artifacts.iterdir()).name.partition(".")[0]


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
    item.calls.report.source = "swap"


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
        monkeypatch.setattr(terminal_lines, "sys", SimpleNamespace(stderr=stderr, modules={}))
        yield Pty(master, stderr)
    os.close(master)


def test_several_graphs_are_announced_once(terminal: Pty) -> None:
    progress, items = Progress(TerminalLines("terminal"), waits=False), [pending(), pending(), pending()]
    for _ in range(2):
        progress.look(items)
    assert terminal.said() == ["precompiled: 3 graphs compile in the background; running eager"]
    for item in items:
        swapped(item)
    progress.look([])
    (line,) = terminal.said()
    assert line.startswith("precompiled: compiled after call 40 (1.")


def test_graphs_that_come_later_are_announced_too(terminal: Pty) -> None:
    progress = Progress(TerminalLines("terminal"), waits=False)
    for _ in range(MAX_BATCHES + 1):
        item = pending()
        progress.look([item])
        swapped(item)
        progress.look([])
    begins, ends, more, later, *rest = terminal.said()
    assert begins == "precompiled: 1 graph compiles in the background; running eager"
    assert ends.startswith("precompiled: compiled after call 40 (1.")
    assert more == "precompiled: 1 more graph compiles in the background; running eager"
    assert re.fullmatch(
        r"precompiled: compiled after 1\.\d s", later
    )  # its calls do not count from the program's start
    assert len(rest) == 2 * (MAX_BATCHES - 2)


def test_program_in_wait_is_announced_as_waiting(terminal: Pty) -> None:
    Progress(TerminalLines("terminal"), waits=False).look([pending()], blocked=True)
    assert terminal.said() == ["precompiled: 1 graph compiles in the background; the program waits for it"]


def test_graph_in_pieces_is_announced_before_its_whole(terminal: Pty) -> None:
    progress = Progress(TerminalLines("terminal"), waits=False)
    first, second = pending(), pending()
    progress.look([first, second])
    first.calls.calls_before_flip = first.calls.calls  # by its pieces
    progress.look([second])
    swapped(second)
    progress.look([])
    swapped(first)
    progress.look([])
    progress.ended(0, lambda: True)
    ends = "precompiled: compiled in pieces after call 40 ("
    assert [line[: len(ends)] for line in terminal.said()[1:]] == [ends]


def test_graphs_with_different_call_counts_name_no_call(terminal: Pty) -> None:
    progress, items = Progress(TerminalLines("terminal"), waits=False), [pending(), pending()]
    items[0].calls.calls = 120
    progress.look(items)
    for item in items:
        swapped(item)
    progress.look([])
    assert re.fullmatch(r"precompiled: compiled after 1\.\d s", terminal.said()[1])


def test_graphs_that_stay_eager_are_not_reported_as_compiled(terminal: Pty) -> None:
    progress, items = Progress(TerminalLines("terminal"), waits=False), [pending(), pending()]
    progress.look(items)
    swapped(items[0])
    items[1].calls.swap.on(Event.FAILED)
    progress.look([])
    line = terminal.said()[1]
    assert line.startswith("precompiled: 1 of 2 graphs compiled after 1.")
    assert line.endswith("; 1 stays eager; `precompiled explain --run last` says why")


def test_graph_that_raises_is_not_reported_as_eager(terminal: Pty) -> None:
    progress, item = Progress(TerminalLines("terminal"), waits=True, raises=True), pending()
    progress.look([item])
    item.calls.swap.on(Event.FAILED)
    progress.look([])
    assert "; 1 raises NotServed; " in terminal.said()[1]


def test_program_that_waits_is_announced(terminal: Pty) -> None:
    progress, item = Progress(TerminalLines("terminal"), waits=True), pending()
    progress.look([item])
    swapped(item)
    progress.look([])
    first, second = terminal.said()
    assert first == "precompiled: 1 graph compiles in the background; the program waits for it"
    assert second.startswith("precompiled: compiled after 1.")


@pytest.mark.parametrize("is_announced", [True, False])
def test_program_that_ends_before_its_compile_is_announced(terminal: Pty, is_announced: bool) -> None:
    progress, item = Progress(TerminalLines("terminal"), waits=False), pending()
    if is_announced:
        progress.look([item])
    for _ in range(2):
        progress.ended(2, lambda: True)
    said = "precompiled: the program ended before 2 graphs were compiled; the daemon continues, for the next run"
    assert terminal.said()[is_announced:] == [said]


def test_program_that_ends_without_a_daemon_is_announced(terminal: Pty) -> None:
    Progress(TerminalLines("terminal"), waits=False).ended(1, lambda: False)
    said = "precompiled: the program ended before 1 graph was compiled; no daemon runs, so the next run submits again"
    assert terminal.said() == [said]


def test_a_program_that_ends_without_pending_graphs_says_nothing(terminal: Pty) -> None:
    Progress(TerminalLines("terminal"), waits=False).ended(0, lambda: True)
    Progress(TerminalLines("off"), waits=False).ended(1, lambda: True)
    assert terminal.said() == []


def test_quick_compile_is_not_announced(terminal: Pty) -> None:
    progress, item = Progress(TerminalLines("terminal"), waits=False), pending()
    item.since = time.monotonic() + 60
    progress.look([item])
    swapped(item)
    progress.look([])
    assert terminal.said() == []


def test_progress_is_off_by_setting_and_for_other_ranks(terminal: Pty, monkeypatch: pytest.MonkeyPatch) -> None:
    Progress(TerminalLines("off"), waits=False).look([pending()])
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    Progress(TerminalLines("terminal"), waits=False).look([pending()])
    assert terminal.said() == []


def test_progress_waits_for_the_end_of_a_prompt(terminal: Pty) -> None:
    """A progress line would spoil the line that readline edits, or the screen of a full-screen program."""
    usual = termios.tcgetattr(terminal.master)
    termios.tcsetattr(terminal.master, termios.TCSANOW, [*usual[:3], usual[3] & ~termios.ICANON, *usual[4:]])
    progress, item = Progress(TerminalLines("terminal"), waits=False), pending()
    progress.look([item])
    assert terminal.said() == []
    termios.tcsetattr(terminal.master, termios.TCSANOW, usual)
    progress.look([item])
    assert len(terminal.said()) == 1


def test_progress_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = open(os.devnull, "w")  # noqa: SIM115 - that is what is tested
    closed.close()
    for stderr in (None, closed, object()):
        monkeypatch.setattr(terminal_lines, "sys", SimpleNamespace(stderr=stderr, modules={}))
        progress = Progress(TerminalLines("terminal"), waits=False)
        progress.look([pending()])
        progress.look([])


def hit(key: str, compile_s: float, source: str = "hit") -> GraphCalls:
    calls = GraphCalls(GraphReport(id=key, name="f [0/0]", key=key))
    calls.loaded(source, 0.01, compile_s)
    return calls


def snapshots(*calls: GraphCalls) -> list[GraphReport]:
    return [item.snapshot() for item in calls]


def test_hits_are_announced_once_with_the_time_of_each_artifact(terminal: Pty) -> None:
    line = HitLine(TerminalLines("terminal"))
    graphs = [hit("a", 20.4), hit("b", 6.2, "package"), hit("a", 20.4)]  # two layers have the artifact "a"
    for _ in range(2):
        line.look(snapshots(*graphs))
    line.look(snapshots(*graphs), at_end=True)
    assert terminal.said() == ["precompiled: 3 of 3 graphs from the cache (about 27 s saved)"]


def test_later_hits_are_announced_at_the_end(terminal: Pty) -> None:
    line, later = HitLine(TerminalLines("terminal")), pending()
    swapped(later)
    line.look(snapshots(hit("a", 0.0)))
    line.look(snapshots(hit("a", 0.0), hit("b", 90.0)))
    assert terminal.said() == ["precompiled: 1 of 1 graph from the cache"]
    line.look(snapshots(hit("a", 0.0), hit("b", 90.0), later.calls), at_end=True)
    assert terminal.said() == ["precompiled: 2 of 3 graphs from the cache (about 1.5 min saved)"]


def test_run_with_misses_announces_no_hits(terminal: Pty) -> None:
    """The progress lines already announce a run with misses."""
    item = pending()
    line = HitLine(TerminalLines("terminal"))
    line.look(snapshots(hit("a", 3.0), item.calls))
    swapped(item)
    line.look(snapshots(hit("a", 3.0), item.calls), at_end=True)
    line.look([], at_end=True)
    assert terminal.said() == []


@pytest.mark.parametrize("is_swapped", [False, True])
def test_graphs_in_pieces_from_the_store_are_announced(terminal: Pty, is_swapped: bool) -> None:
    """The artifact of the whole graph may come before the line is printed."""
    item, later = pending(), pending()
    later.calls.report.id = "2"
    line = HitLine(TerminalLines("terminal"))
    line.began_in_pieces(item.calls.report.id)
    if is_swapped:
        swapped(item)
    for at_end in (False, False, True):
        line.look(snapshots(item.calls), at_end=at_end)
    assert terminal.said() == ["precompiled: 1 graph runs compiled in pieces from the cache"]
    line = HitLine(TerminalLines("terminal"))
    line.began_in_pieces(item.calls.report.id)
    line.look(snapshots(item.calls, hit("a", 20.4), later.calls))
    assert terminal.said() == [], "the progress lines announce a run with misses"
    line.look(snapshots(item.calls, hit("a", 20.4)))
    assert terminal.said() == ["precompiled: 2 of 2 graphs from the cache, 1 in pieces (about 20 s saved)"]


def test_graph_that_torch_compiled_is_not_announced_as_a_hit(terminal: Pty) -> None:
    bypassed = GraphCalls(GraphReport(id="2", name="g [0/0]"))
    bypassed.bypassed("freezing", "")
    HitLine(TerminalLines("terminal")).look(snapshots(hit("a", 3.25), bypassed))
    assert terminal.said() == ["precompiled: 1 of 2 graphs from the cache (about 3.2 s saved)"]


def slower(id: str, source: str | None) -> GraphCalls:
    calls = GraphCalls(GraphReport(id=id, name="f [0/0]"))
    if source is not None:
        calls.loaded("hit", 0.01, 1.0)
    message = f"compiled code is slower than eager code on this host: {Lost(0.022, 0.028)}"
    calls.went_back("slower-than-eager", message)
    return calls


@pytest.mark.reason("slower-than-eager")
def test_graphs_that_are_left_to_eager_code_are_announced_once(terminal: Pty) -> None:
    line, graphs = EagerLine(TerminalLines("terminal")), [hit("a", 3.0)]
    line.look(snapshots(*graphs))
    graphs.append(slower("1", "hit"))
    for _ in range(2):
        line.look(snapshots(*graphs))
    times = "its calls took 28 ms, those of the earlier code 22 ms"
    assert terminal.said() == [f"precompiled: 1 graph went back to eager: compiled code was slower ({times})"]
    graphs += [slower("2", "hit"), slower("3", "hit"), slower("4", None)]
    line.look(snapshots(*graphs))
    assert terminal.said() == [
        "precompiled: 2 graphs went back to eager: compiled code was slower",
        "precompiled: 1 graph stays eager (slower-than-eager); `precompiled explain` shows the times",
    ]
    for number in range(5, 5 + MAX_LINES):
        graphs.append(slower(str(number), None))
        line.look(snapshots(*graphs))
    assert len(terminal.said()) == MAX_LINES - 3


@pytest.mark.parametrize("progress", ["terminal", "always"])
def test_lines_reach_a_log_if_the_setting_is_always(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: str
) -> None:
    said = "precompiled: 1 of 1 graph from the cache\n"
    with (tmp_path / "log").open("w") as log:
        monkeypatch.setattr(terminal_lines, "sys", SimpleNamespace(stderr=log, modules={}))
        HitLine(TerminalLines(progress)).look(snapshots(hit("a", 0.0)))
    without_descriptor = io.StringIO()
    monkeypatch.setattr(terminal_lines, "sys", SimpleNamespace(stderr=without_descriptor, modules={}))
    HitLine(TerminalLines(progress)).look(snapshots(hit("a", 0.0)))
    expected = said if progress == "always" else ""
    assert (tmp_path / "log").read_text() == without_descriptor.getvalue() == expected


BARS = """
import sys, threading
from types import SimpleNamespace
from precompiled.client.terminal_lines import TerminalLines
{bar}
for step in steps:
    if step == 2:
        thread = threading.Thread(target=lambda: TerminalLines("terminal").say("2 of 2 graphs from the cache"))
        thread.start()
        thread.join()
"""
BAR = {
    "tqdm": "from tqdm import tqdm; steps = tqdm(range(5), desc='train', mininterval=0, ascii=True, file=sys.stderr)",
    "nested tqdm": "from tqdm import tqdm; whole = tqdm(total=9, desc='epochs', position=1, file=sys.stderr); "
    "steps = tqdm(range(5), desc='train', mininterval=0, ascii=True, position=0)",
    "rich": "from rich.progress import track; steps = track(range(5), description='train')",
}


@pytest.mark.parametrize("bar", BAR)
def test_line_tears_no_progress_bar(tmp_path: Path, bar: str) -> None:
    program = tmp_path / "train.py"
    program.write_text(BARS.format(bar=BAR[bar]))
    with on_terminal([sys.executable, str(program)], dict(os.environ), tmp_path) as terminal:
        assert terminal.ended() == 0, terminal.written
        lines = terminal.screen.text().splitlines()
    assert [line for line in lines if "precompiled" in line] == ["precompiled: 2 of 2 graphs from the cache"], lines
    bars = [line for line in lines if line.startswith("train")]
    assert len(bars) == 1 and "100%" in bars[0], terminal.written
