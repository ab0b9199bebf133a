"""`make demo`: a model trains without ever waiting for its compile, and the next process starts compiled.

Four processes train the same model, one after the other, each observed by observed.py:

    plain, cold    torch.compile as it comes, with an empty cache
    A              below `precompiled run`, with an empty store: eager first, swapped in between two steps
    B              below `precompiled run`, after A: compiled from its first step, nothing traced or compiled anywhere
    plain, warm    torch.compile as it comes, with the cache that "plain, cold" filled

Before them, a process makes a few eager steps, to be compared with those that A makes beside the compile.

All files lie in a temporary directory, with a daemon of its own; both are removed at the end, also after Ctrl-C.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import timeline
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from run import Run

HERE = Path(__file__).resolve().parent
# Compiled steps that each process makes at least, to have a steady step time.
COMPILED_STEPS = 20
# Eager and compiled code round differently, and the difference grows from step to step.
TOLERANCE = 1e-3
# A bound on the silence of one process, far above what a step takes: the demo ends with an error instead of hanging.
# Not on the whole process, whose length is up to what else the machine does.
SILENCE_S = 240.0
PLAIN_LINE_S = 5.0  # between two lines of progress where there is no terminal


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


class Demo:
    def __init__(self, console: Console, directory: Path) -> None:
        self.console = console
        self.directory = directory
        self.eager = Run("eager", "not compiled", hook=False, extra={"TORCH_COMPILE_DISABLE": "1"})
        self.runs = [
            Run("plain, cold", "nothing cached", hook=False),
            Run("A", "nothing cached", hook=True),
            Run("B", "after A", hook=True),
            Run("plain, warm", "its own cache", hook=False),
        ]

    # ------------------------------------------------------------------ the processes

    def variables(self, run: Run) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRECOMPILED")}
        return {
            **kept,
            "HF_HUB_OFFLINE": "1",
            "PRECOMPILED_CACHE_DIR": str(self.directory / "store"),
            "PRECOMPILED_RUNTIME_DIR": str(self.directory / "run"),
            "PRECOMPILED_PACKAGE_AUDIT": "0",  # one process in fifty traces to compare: not in a demo
            # Plain torch.compile fills one cache; the runs of ours have another, which stays empty.
            "TORCHINDUCTOR_CACHE_DIR": str(self.directory / ("inductor-ours" if run.hook else "inductor-plain")),
            # The hook may be on for good here: plain torch.compile must stay plain.
            **({} if run.hook else {"PRECOMPILED": "0"}),
            **run.extra,
        }

    def train(self, run: Run, min_steps: int) -> None:
        command = [sys.executable, str(HERE / "observed.py"), str(min_steps), str(COMPILED_STEPS)]
        if run.hook:
            command = [sys.executable, "-m", "precompiled", "run", "--", *command]
        with open(self.directory / f"{run.label}.log", "w+") as log:
            run.launched = run.heard = time.monotonic()
            run.process = subprocess.Popen(
                command, env=self.variables(run), stdout=subprocess.PIPE, stderr=log, text=True
            )
            ended = threading.Event()
            threading.Thread(target=self._end_silence, args=(run, ended), daemon=True).start()
            try:
                assert run.process.stdout is not None
                for line in run.process.stdout:
                    run.heard = time.monotonic()
                    self._take(run, json.loads(line))
                status = run.process.wait()
            finally:
                ended.set()
            if status != 0 or not run.end:
                log.seek(0)
                raise DemoError(self._explain(run, status, log.read()))
        run.finished = True

    def _end_silence(self, run: Run, ended: threading.Event) -> None:
        assert run.process is not None
        while not ended.wait(1.0):
            if time.monotonic() - run.heard > SILENCE_S:
                run.process.kill()
                return

    def _explain(self, run: Run, status: int, errors: str) -> str:
        silent = time.monotonic() - run.heard >= SILENCE_S
        text = f"The process {run.label!r} " + (
            f"made no step for {SILENCE_S:.0f} s, after {len(run.steps)} steps" if silent else f"ended: {status}"
        )
        daemon_log = self.directory / "run" / "daemon.log"
        daemon = daemon_log.read_text() if daemon_log.exists() else ""
        return "\n".join([text, *errors.splitlines()[-30:], *daemon.splitlines()[-10:]])

    def _take(self, run: Run, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        if kind == "begin":
            run.began = event["at"]
        elif kind == "step":
            run.steps.append(event)
        elif kind == "end":
            run.end = event

    def precompiled(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "precompiled", *arguments],
            env=self.variables(self.runs[1]), capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    def run_all(self) -> None:
        with self.progress():
            plain_cold, a, b, plain_warm = self.runs
            self.train(self.eager, COMPILED_STEPS)
            self.train(plain_cold, 0)
            self.train(a, 0)
            # As many steps as A made, so that each loss of A has one to be compared with.
            self.train(b, len(a.steps))
            self.train(plain_warm, 2 * COMPILED_STEPS)
        self.stats = json.loads(self.precompiled("stats", "--json").stdout)

    def close(self) -> None:
        for run in (self.eager, *self.runs):
            if run.process is not None and run.process.poll() is None:
                run.process.kill()
                run.process.wait()
        stopped = self.precompiled("stop")
        if stopped.returncode != 0:
            self.console.print(f"The demo's daemon could not be stopped: {stopped.stderr}", style="bold red")

    # ------------------------------------------------------------------ progress

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Shows the progress: the growing timeline in a terminal, a line every few seconds elsewhere."""
        if self.console.is_terminal:
            with Live(get_renderable=self._live, console=self.console, refresh_per_second=5, transient=True):
                yield
            return
        done = threading.Event()
        thread = threading.Thread(target=self._lines, args=(done,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _live(self) -> Group:
        return Group(self.drawing(), Text(self._now(), "bold"))

    def _lines(self, done: threading.Event) -> None:
        while not done.wait(PLAIN_LINE_S):
            if line := self._now():
                self.console.print(line, highlight=False)

    def _now(self) -> str:
        run = next((run for run in self.runs if run.launched and not run.finished), None)
        if run is None:
            return ""
        seconds = time.monotonic() - run.launched
        if not run.began:
            doing = "starts Python, imports torch"
        elif not run.steps:
            doing = "in its first call of the compiled model"
        else:
            last = run.steps[-1]
            how = "compiled" if last["compiled"] else "eager, while its graph is compiled elsewhere"
            doing = f"step {len(run.steps)}, {last['seconds'] * 1000:.0f} ms ({how})"
        number = self.runs.index(run) + 1
        return f"{number}/{len(self.runs)}  {run.label} ({run.title})  {seconds:.0f} s: {doing}"

    def drawing(self) -> Text:
        return timeline.draw([run.row() for run in self.runs], min(self.console.width, 120))

    # ------------------------------------------------------------------ what it shows

    def table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("", no_wrap=True)
        for run in self.runs:
            what = "precompiled" if run.hook else "torch.compile"
            table.add_column(f"{run.label}\n[not bold bright_black]{what}\n{run.title}[/]", justify="right")

        def milliseconds(value: float | None) -> str:
            return "-" if value is None else f"{value * 1000:.0f} ms"

        def row(label: str, values: list[str], style: str = "") -> None:
            table.add_row(label, *values, style=style)

        row("first training step took", [f"{run.steps[0]['seconds']:.1f} s" for run in self.runs], "bold")
        row("  Dynamo's tracing", [f"{run.end['tracing_s']:.1f} s" for run in self.runs])
        row("  compile, or lookup and load", [f"{run.end['backend_s']:.2f} s" for run in self.runs])
        row("runs compiled after", [f"{run.compiled_after_s():.1f} s" for run in self.runs])
        row("steps until then, eager", [str(run.first_compiled()) for run in self.runs])
        row("step, eager (median)", [milliseconds(run.step_s(False)) for run in self.runs])
        row("step, compiled (median)", [milliseconds(run.step_s(True)) for run in self.runs])
        row("compiled by this process", ["yes" if self.compiles_itself(run) else "no" for run in self.runs])
        row("processes that it started", [str(len(run.end["started"])) for run in self.runs])
        return table

    @staticmethod
    def compiles_itself(run: Run) -> bool:
        return bool(run.end["cache_misses"] if not run.hook else run.end["compiles"])

    def swap(self) -> Text:
        """The steps around A's swap."""
        a = self.runs[1]
        swap = a.first_compiled()
        text = Text("A's steps around the swap: ")
        for number in range(max(0, swap - 4), min(len(a.steps), swap + 5)):
            step = a.steps[number]
            text.append(f"{step['seconds'] * 1000:.0f} ", "green" if step["compiled"] else "yellow")
            if number == swap - 1:
                text.append("│ swap │ ", "bold")
        return text.append("ms")

    def pace(self) -> Text:
        """A's eager steps, beside which the compile runs, and those of a process alone."""
        a = self.runs[1]
        alone = statistics.median(step["seconds"] for step in self.eager.steps[1:])
        beside = a.steps[1 : a.first_compiled()]
        if not beside:
            return Text("A made no eager step beside its compile.")
        seconds = [step["seconds"] for step in beside]
        share = len(beside) * alone / (beside[-1]["at"] - a.steps[0]["at"])
        return Text(
            f"A's {len(beside)} steps beside its compile took {statistics.median(seconds) / alone:.1f} times as long "
            f"as eager steps alone ({alone * 1000:.0f} ms) in the median, {max(seconds) / alone:.1f} times at worst; "
            f"{share:.0%} of the steps that eager alone makes in that time"
        )

    def claims(self) -> Iterator[tuple[bool, str]]:
        plain, a, b, _warm = self.runs
        first, cold = a.steps[0], plain.steps[0]
        yield (
            not first["compiled"] and a.end["compiles"] == 0,
            f"A made its first step eager after {first['seconds']:.1f} s; plain torch.compile's took "
            f"{cold['seconds']:.1f} s ({first['seconds'] / cold['seconds']:.2f} of it is A's)",
        )
        meanwhile = sum(step["at"] - a.began <= cold["at"] - plain.began for step in a.steps)
        yield (
            all((graph["state"], graph["source"]) == ("compiled", "swap") for graph in a.end["graphs"])
            and 0 < a.first_compiled() < len(a.steps),
            f"A went on training and swapped in before its step {a.first_compiled() + 1}; "
            f"it had made {meanwhile} steps when plain torch.compile would have ended its first",
        )
        yield (
            all(step["compiled"] for step in b.steps)
            and all((graph["state"], graph["source"]) == ("compiled", "package") for graph in b.end["graphs"])
            and b.end["frames"] == 0,
            f"B ran compiled from its first step, after {b.steps[0]['seconds']:.1f} s: Dynamo traced nothing",
        )
        filled = [path for path in (self.directory / "inductor-ours").rglob("*") if path.is_file()]
        yield (
            b.end["compiles"] == 0 and not b.end["started"] and not filled,
            f"B compiled nothing: {b.end['compiles']} graphs went to torch's compiler, {len(b.end['started'])} "
            f"processes were started, {len(filled)} files are in Inductor's cache",
        )
        graphs = {graph["key"] for graph in a.end["graphs"] + b.end["graphs"]}
        yield (
            self.stats["compiled"] == len(graphs),
            f"the daemon compiled {self.stats['compiled']} graph{'s' * (len(graphs) != 1)}, for both processes",
        )
        yield self.equal_losses()

    def equal_losses(self) -> tuple[bool, str]:
        a = self.runs[1]
        worst = 0.0
        for run in self.runs:
            for left, right in zip(a.losses, run.losses, strict=False):
                worst = max(worst, abs(left - right) / abs(right))
        return worst <= TOLERANCE, (
            f"all trained the same: the losses of A and B over {len(a.steps)} steps, and of plain torch.compile over "
            f"its {len(self.runs[-1].steps)}, differ by {worst:.1e} at most (tolerance {TOLERANCE:g}: eager and "
            "compiled code round differently)"
        )

    def conclude(self) -> bool:
        self.console.print(self.drawing())
        self.console.print(self.table())
        self.console.print()
        self.console.print(self.swap(), soft_wrap=True)
        self.console.print(self.pace(), soft_wrap=True)
        self.console.print()
        claims = list(self.claims())
        for holds, sentence in claims:
            mark = Text("✓ ", "bold green") if holds else Text("✗ ", "bold red")
            self.console.print(mark + Text(sentence), soft_wrap=True)
        return all(holds for holds, _ in claims)


def _terminated(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def main() -> int:
    signal.signal(signal.SIGTERM, _terminated)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    started = time.monotonic()
    console.print(Text("precompiled: the demo", "bold"))
    console.print(
        "Four processes train the same small GPT-2 (examples/demo/train.py), one after the other: two with plain\n"
        "torch.compile, two below `precompiled run`. This takes two to four minutes on two cores.\n",
        highlight=False,
    )
    directory = Path(tempfile.mkdtemp(prefix="pc-demo-"))
    demo = Demo(console, directory)
    try:
        demo.run_all()
        shown = demo.conclude()
    except KeyboardInterrupt:
        console.print("Interrupted; cleaning up.")
        return 130
    except DemoError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    finally:
        demo.close()
        shutil.rmtree(directory)
    console.print(
        f"\nIt took {time.monotonic() - started:.0f} s; its daemon and its files are gone. Your own program, the same "
        "way: [bold]precompiled run -- python train.py[/]",
        highlight=False,
        soft_wrap=True,
    )
    if not shown:
        console.print("The demo did not show what it should: see the lines with ✗.", style="bold red")
    return 0 if shown else 1


if __name__ == "__main__":
    sys.exit(main())
