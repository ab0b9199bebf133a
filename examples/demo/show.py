"""Runs the demos: starts the observed training processes, shows their progress, checks claims.

All files are in a temporary directory. The demo removes it at the end, also after Ctrl-C.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import timeline
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text
from run import Run

HERE = Path(__file__).resolve().parent
# Smallest number of compiled steps of each process, for a stable step time.
COMPILED_STEPS = 20
# Eager and compiled code round differently. The difference grows with each step (5e-5 after 160 steps, 1e-3 after 330),
# so only the first steps are compared.
TOLERANCE, COMPARED_STEPS = 1e-3, 200
# Longest silence of a process, far above a step's time. Then the demo ends with an error instead of hanging. The whole
# process has no limit, because its time depends on the machine's load.
SILENCE_S = 240.0
PLAIN_LINE_S = 5.0  # seconds between two lines of progress without a terminal


class DemoError(Exception):
    """The demo cannot continue. The message gives the reason."""


class Show:
    """A demo: makes its ``runs``, shows their results, and checks its claims."""

    title = about = try_it = ""

    def __init__(self, console: Console, directory: Path) -> None:
        self.console = console
        self.directory = directory
        self.temporary = directory / "tmp"
        self.temporary.mkdir()
        self.runs: list[Run] = []

    def variables(self, run: Run) -> Mapping[str, str]:
        raise NotImplementedError

    def run_all(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def shown(self) -> Iterable[Any]:
        raise NotImplementedError

    def claims(self) -> Iterable[tuple[bool, str]]:
        raise NotImplementedError

    # ------------------------------------------------------------------ the processes

    def plain_variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRECOMPILED")}
        # Disable audits, because one process of fifty would trace. TMPDIR also gets Inductor's precompiled header.
        return {
            **kept,
            "HF_HUB_OFFLINE": "1",
            "PRECOMPILED_PACKAGE_AUDIT": "0",
            "PRECOMPILED_CHECK": "never",
            "TMPDIR": str(self.temporary),
        }

    def train(self, run: Run, steps: int, *, compiled: int = COMPILED_STEPS, most_s: float = math.inf) -> None:
        """Run one process to its end: ``steps`` steps, ``compiled`` of them compiled.

        After ``most_s`` seconds of training, it runs only the missing compiled steps.
        """
        run.wanted_steps, run.wanted_compiled, run.most_s = steps, compiled, most_s
        command = [sys.executable, str(HERE / "observed.py"), str(steps), str(compiled), str(most_s)]
        if run.hook:
            command = [sys.executable, "-m", "precompiled", "run", "--", *command]
        with open(self.directory / f"{run.label}.log", "w+") as log:
            run.launched = run.heard = time.monotonic()
            # Each run has its own session, like programs on two hosts or in two terminals. On some kernels, two runs in
            # one session would take all CPU time from the compiles (docs/decisions/0021).
            run.process = subprocess.Popen(
                command, env=self.variables(run), stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
            if not self.console.is_terminal:
                self.console.print(self._now(run), highlight=False)
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
        daemon_log = Path(self.variables(run).get("PRECOMPILED_RUNTIME_DIR", "/")) / "daemon.log"
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

    def precompiled(self, run: Run, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `precompiled` command on the host of a run."""
        return subprocess.run(
            [sys.executable, "-m", "precompiled", *arguments],
            env=self.variables(run),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            start_new_session=True,  # a second Ctrl-C must not end the command that stops the daemon
        )

    @staticmethod
    def end(runs: Iterable[Run]) -> None:
        for run in runs:
            if run.process is None or run.process.poll() is not None:
                continue
            # torch's compile workers. A run with precompiled has only the daemon, which ends its own workers.
            compiling = [] if run.hook else psutil.Process(run.process.pid).children(recursive=True)
            run.process.kill()
            run.process.wait()
            for child in compiling:
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            psutil.wait_procs(compiling, timeout=10)

    def stop(self, run: Run) -> None:
        stopped = self.precompiled(run, "daemon", "stop")
        if stopped.returncode != 0:
            self.console.print(f"The demo's daemon could not be stopped: {stopped.stderr}", style="bold red")

    # ------------------------------------------------------------------ progress

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show the progress: the growing timeline in a terminal, otherwise a line every few seconds."""
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
        return Group(self.drawing(), Text(self._progress(), "bold"))

    def _lines(self, done: threading.Event) -> None:
        while not done.wait(PLAIN_LINE_S):
            if line := self._progress():
                self.console.print(line, highlight=False)

    def _progress(self) -> str:
        run = next((run for run in self.runs if run.launched and not run.finished), None)
        return self._now(run) if run is not None else ""

    def _now(self, run: Run) -> str:
        seconds = time.monotonic() - run.launched
        if not run.began:
            doing = "starts Python, imports torch"
        elif not run.steps:
            doing = "in its first call of the model"
        else:
            last, total = run.steps[-1], run.total()
            how = {"eager": "eager, while a worker compiles its graph", "pieces": "compiled in pieces"}.get(
                last["code"] if run.wanted_compiled else "", last["code"]
            )
            of = "" if total is None else f" of {total}" if run.most_s == math.inf else f" of {total} at most"
            doing = f"step {len(run.steps)}{of}, {last['seconds'] * 1000:.0f} ms ({how})"
        number = self.runs.index(run) + 1
        return f"{number}/{len(self.runs)}  {run.label} ({run.title})  {seconds:.0f} s: {doing}"

    def drawing(self) -> Text:
        return timeline.draw([run.row() for run in self.runs], min(self.console.width, 120))

    # ------------------------------------------------------------------ what it shows

    def worst_difference(self, reference: Run) -> float:
        """Return the largest relative difference between the first losses of a run and those of each other run."""
        worst = 0.0
        for run in self.runs:
            for left, right in zip(reference.losses[:COMPARED_STEPS], run.losses, strict=False):
                worst = max(worst, abs(left - right) / abs(right))
        return worst

    def conclude(self) -> bool:
        self.console.print(self.drawing())
        for item in self.shown():
            self.console.print(item, soft_wrap=True)
        self.console.print()
        claims = list(self.claims())
        for holds, sentence in claims:
            mark = Text("✓ ", "bold green") if holds else Text("✗ ", "bold red")
            self.console.print(mark + Text(sentence), soft_wrap=True)
        return all(holds for holds, _ in claims)


class Ended(BaseException):
    """A signal ended the demo."""

    def __init__(self, number: int) -> None:
        self.number = number


class _Signals:
    """The first signal raises ``Ended``. Later signals, and signals during the cleanup, do nothing.

    Otherwise, a second Ctrl-C, or the signal that timeout(1) sends to the whole group, would interrupt the cleanup.
    """

    def __init__(self) -> None:
        self._raises = True
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def _take(self, number: int, _frame: Any) -> None:
        if self._raises:
            self._raises = False
            raise Ended(number)

    def quiet(self) -> None:
        self._raises = False


def main(kind: type[Show]) -> int:
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    signals = _Signals()
    try:
        return _show(kind, console, signals)
    except Ended as ended:
        return 128 + ended.number


def _show(kind: type[Show], console: Console, signals: _Signals) -> int:
    started = time.monotonic()
    console.print(Text(kind.title, "bold"))
    console.print(kind.about, highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="pc-demo-"))
    demo = kind(console, directory)
    try:
        try:
            demo.run_all()
            shown = demo.conclude()
        except Ended:
            console.print("Interrupted; cleaning up.")
            raise
        except DemoError as error:
            console.print(str(error), style="bold red", markup=False, highlight=False)
            return 1
        finally:
            signals.quiet()
    finally:
        demo.close()
        shutil.rmtree(directory)
    console.print(
        f"\nThe demo took {time.monotonic() - started:.0f} s, and has removed its processes and files. {kind.try_it}",
        highlight=False,
        soft_wrap=True,
    )
    if not shown:
        console.print("Not all claims hold: see the lines with ✗.", style="bold red")
    return 0 if shown else 1
