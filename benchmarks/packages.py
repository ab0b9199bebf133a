"""Packages: a table of architectures, and the first call of the second process beside plain torch.compile's warm start.

`python -m benchmarks.packages` (the table), `... --first-call` (the measure). Exit status 1 when a row is not
as it should be (a frame was traced in the second process, or something differs from eager), or the goal is missed.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.hosts import LIMIT_S, BenchmarkError, Host, fresh_host
from benchmarks.measures import GPT2, SMALL, _interleaved
from benchmarks.result import machine, markdown
from benchmarks.zoo import ARCHITECTURES

TASKS = ("training", "inference")
ROOT = Path(__file__).parent.parent
ON = {"PRECOMPILED_PACKAGES": "1", "PRECOMPILED_MODE": "wait"}
GOAL = 0.12

Say = Callable[[str], None]


@dataclass
class Row:
    """One architecture in training or inference: recorded by one process, used by the next."""

    architecture: str
    kind: str
    task: str
    frames: int = 0  # that Dynamo met in the first process
    compiled: int = 0
    traced: int = 0  # in the second
    guards: int = 0
    first_s: float = 0.0  # the first call in the second process
    traced_s: float = 0.0  # the same with packages off: the artifacts are there, Dynamo traces
    reasons: dict[str, int] = field(default_factory=dict)
    different: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def right(self) -> bool:
        return not self.error and not self.different and self.traced == 0 and self.compiled > 0

    def cells(self) -> list[str]:
        return [
            self.architecture, self.kind, self.task, f"{self.compiled} of {self.frames}", str(self.guards),
            str(self.traced), "error" if self.error else "no" if self.different else "yes",
            f"{self.first_s:.2f} s", f"{self.traced_s:.2f} s",
            f"{self.first_s / self.traced_s:.2f}" if self.traced_s else "", ", ".join(self.reasons) or "",
        ]  # fmt: skip


HEADERS = [
    "architecture", "kind", "task", "frames compiled", "guards", "frames traced in the 2nd process", "equal to eager",
    "its first call", "traced, artifacts there", "ratio", "reasons",
]  # fmt: skip


def examine(names: Sequence[tuple[str, str]], say: Say) -> list[Row]:
    rows = []
    with fresh_host() as host:
        host.start_daemon()
        for number, (name, task) in enumerate(names, 1):
            row = Row(name, ARCHITECTURES[name].kind, task)
            try:
                _examine(host, row)
            except BenchmarkError as error:
                row.error = str(error)
            rows.append(row)
            say(f"{number}/{len(names)} {' '.join(row.cells())}")
    return rows


def _examine(host: Host, row: Row) -> None:
    first = _run(host, row, ON)
    second = _run(host, row, ON)
    plain = _run(host, row, {"PRECOMPILED_MODE": "wait"})
    row.frames = len(first["functions"])
    row.compiled = sum(bool(function["guards"]) for function in first["functions"])
    row.guards = sum(function["guards"] for function in first["functions"])
    # Dynamo's own counters: frames it looked at, and graphs it captured.
    row.traced = second["frames"].get("total", 0) + second["traced"]["unique_graphs"]
    row.different = [*first["different"], *second["different"]]
    row.first_s, row.traced_s = second["seconds"][0], plain["seconds"][0]
    row.reasons = dict(Counter(function["reason"] for function in first["functions"] if function["reason"]))


def _run(host: Host, row: Row, environment: dict[str, str]) -> dict[str, Any]:
    program = [sys.executable, "-m", "benchmarks.packages_program", row.architecture, row.task]
    done = subprocess.run(
        [sys.executable, "-m", "precompiled", "run", "--", *program],
        env=host.environment(hook=True, extra=environment), cwd=ROOT, capture_output=True, text=True,
        check=False, timeout=LIMIT_S,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise BenchmarkError(f"the program ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def first_call(quick: bool, say: Say) -> list[float]:
    """GPT-2 training: the first call of a process beyond one compiled step, with a package / torch.compile warm."""
    spec = (SMALL if quick else GPT2).spec(task="work", steps=3)
    with fresh_host() as our_host, fresh_host() as plain_host:
        our_host.start_daemon()
        our_host.run(spec, hook=True, extra=ON)
        our_host.run(spec, hook=True, extra=ON)  # what followed the swap is recorded as well
        plain_host.run(spec, hook=False)
        say("both caches are filled")

        def ours() -> float:
            found = our_host.run(spec, hook=True, extra=ON)
            if any(graph["source"] != "package" for graph in found["reports"]):
                raise BenchmarkError(f"a graph is not from a package: {found['reports']}")
            return float(found["first_s"]) - statistics.median(found["steps"])

        def plain() -> float:
            found = plain_host.run(spec, hook=False)
            return float(found["first_s"]) - statistics.median(found["steps"])

        raw = _interleaved({"ours": ours, "torch.compile": plain}, 2 if quick else 7, say)
    return [left / right for left, right in zip(raw["ours"], raw["torch.compile"], strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.packages", description=__doc__)
    parser.add_argument("--first-call", action="store_true", help="the measure instead of the table")
    parser.add_argument("--quick", action="store_true", help="a small model for --first-call: no figure to be quoted")
    parser.add_argument("--only", action="append", metavar="NAME", help="these architectures (repeatable; a,b)")
    parser.add_argument("--task", choices=TASKS, help="this task only")
    parser.add_argument("--json", action="store_true", help="the rows as JSON on stdout; progress goes to stderr")
    parser.add_argument("--markdown", action="store_true", help="print the table for docs/benchmarks.md as well")
    arguments = parser.parse_args()
    wanted = [name for item in arguments.only or [] for name in item.split(",")] or list(ARCHITECTURES)
    if unknown := set(wanted) - set(ARCHITECTURES):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(ARCHITECTURES)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(stderr=arguments.json)
    console = console if console.is_terminal else Console(width=200, stderr=arguments.json)
    facts = machine()
    console.print(
        f"{facts['cores']} cores, {facts['cpu']}; torch {facts['torch']}, Python {facts['python']}, {facts['commit']}",
        highlight=False,
    )

    def say(text: str) -> None:
        console.print(f"    {text}", markup=False, highlight=False)

    try:
        if arguments.first_call:
            ratios = first_call(arguments.quick, say)
            median = statistics.median(ratios)
            console.print(
                f"first call beyond a step, package / torch.compile warm: {median:.3f} (goal {GOAL}; "
                f"{min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs)",
                highlight=False,
            )
            return 0 if median <= GOAL else 1
        rows = examine([(name, task) for name in wanted for task in TASKS if arguments.task in (None, task)], say)
    except BenchmarkError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    table = Table(*HEADERS, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row.cells(), style=None if row.right else "red")
    console.print()
    console.print(table)
    for row in rows:
        for text in [*([row.error] if row.error else []), *row.different[:4]]:
            console.print(f"{row.architecture} {row.task}: {text}", style="red", markup=False, highlight=False)
    right = sum(row.right for row in rows)
    console.print(f"\n{right} of {len(rows)} rows are as they should be", highlight=False)
    if arguments.markdown:
        print(f"\n{markdown(HEADERS, [row.cells() for row in rows])}")
    if arguments.json:
        print(json.dumps([{**asdict(row), "right": row.right} for row in rows], indent=1))
    return 0 if right == len(rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
