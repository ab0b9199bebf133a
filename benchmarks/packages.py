"""Packages: a table of architectures, and the first call of the second process beside plain torch.compile's warm start.

`python -m benchmarks.packages` (the table), `... --first-call` (the measure). Exit status 1 when a row is not
as it should be (a frame was traced in the second process, or something differs from eager), or the goal is missed.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.architectures import Name, Say, asked, begin, conclude, rows_parser, show
from benchmarks.contenders import PACKAGES
from benchmarks.effort import FULL, QUICK
from benchmarks.hosts import BenchmarkError, Host, fresh_host, run_json
from benchmarks.zoo import ARCHITECTURES

ON = {**PACKAGES, "PRECOMPILED_MODE": "wait"}
GOAL = 0.12


@dataclass
class Row:
    """One architecture in training or inference: recorded by one process, used by the next, compared by a third."""

    architecture: str
    kind: str
    task: str
    frames: int = 0  # that Dynamo met in the first process
    compiled: int = 0
    traced: int = 0  # in the second
    audited: int = 0  # traced in the third, to what the package says
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
            str(self.traced), str(self.audited), "error" if self.error else "no" if self.different else "yes",
            f"{self.first_s:.2f} s", f"{self.traced_s:.2f} s",
            f"{self.first_s / self.traced_s:.2f}" if self.traced_s else "", ", ".join(self.reasons) or "",
        ]  # fmt: skip


HEADERS = [
    "architecture", "kind", "task", "frames compiled", "guards", "frames traced in the 2nd process",
    "frames audited in the 3rd", "equal to eager",
    "its first call", "traced, artifacts there", "ratio", "reasons",
]  # fmt: skip


def examine(names: Sequence[Name], say: Say) -> list[Row]:
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
    third = _run(host, row, {**ON, "PRECOMPILED_PACKAGE_AUDIT": "1"})
    plain = _run(host, row, {"PRECOMPILED_MODE": "wait"})
    row.frames = len(first["functions"])
    row.compiled = sum(bool(function["guards"]) for function in first["functions"])
    row.guards = sum(function["guards"] for function in first["functions"])
    # Dynamo's own counters: frames it looked at, and graphs it captured.
    row.traced = second["frames"].get("total", 0) + second["traced"]["unique_graphs"]
    row.audited = sum(function["state"] == "audited" for function in third["functions"])
    row.different = [*first["different"], *second["different"]]
    row.different += [function["message"] for function in third["functions"] if function["reason"] == "package-audit"]
    row.first_s, row.traced_s = second["seconds"][0], plain["seconds"][0]
    row.reasons = dict(Counter(function["reason"] for function in first["functions"] if function["reason"]))


def _run(host: Host, row: Row, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.packages_program", row.architecture, row.task]
    return run_json(command, host.environment(hook=True, extra=environment))


def first_call(quick: bool, say: Say) -> list[float]:
    """GPT-2 training: the first call of a process beyond one compiled step, with a package / torch.compile warm."""
    effort = QUICK if quick else FULL
    spec = effort.spec(pending="wait", steps=3)
    ratios = []
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
            return _beyond_a_step(found)

        def plain() -> float:
            return _beyond_a_step(plain_host.run(spec, hook=False))

        for number in range(2 if quick else 7):
            sides = {"ours": ours, "torch.compile": plain}
            order = list(sides) if number % 2 else list(reversed(sides))
            seconds = {side: sides[side]() for side in order}
            ratios.append(seconds["ours"] / seconds["torch.compile"])
            say(", ".join(f"{side} {value:.2f} s" for side, value in seconds.items()))
    return ratios


def _beyond_a_step(found: dict[str, Any]) -> float:
    return float(found["steps"][0]["s"]) - float(found["step_s"])


def main() -> int:
    parser = rows_parser("python -m benchmarks.packages", __doc__)
    parser.add_argument("--first-call", action="store_true", help="the measure instead of the table")
    parser.add_argument("--quick", action="store_true", help="a small model for --first-call: no figure to be quoted")
    arguments = parser.parse_args()
    names = asked(parser, arguments)
    console = begin(arguments)

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
        rows = examine(names, say)
    except BenchmarkError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    show(console, HEADERS, rows, lambda row: [*([row.error] if row.error else []), *row.different[:4]])
    console.print(f"\n{sum(row.right for row in rows)} of {len(rows)} rows are as they should be", highlight=False)
    return conclude(arguments, HEADERS, rows)


if __name__ == "__main__":
    raise SystemExit(main())
