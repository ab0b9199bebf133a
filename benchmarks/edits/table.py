"""Measures starts after an edit: which functions are traced, and how long the first step takes, relative to
torch.compile's warm start.

`make edits` (`python -m benchmarks.edits`). Each program first fills the store and Inductor's cache. After each edit,
it runs with precompiled's defaults (mode eager, packages on) and with plain torch.compile. The time of the first step
starts before the first compiled call and ends after the first training step. It includes evaluations, not imports.

Exits 1 if the traced functions are not exactly the necessary ones, or if a step's values differ from plain
torch.compile's. Also exits 1 if an edit needs no trace, but its median time misses the goal.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.edits.edits import ALL, EDITS, Edit
from benchmarks.edits.projects import Project, Run, unequal
from benchmarks.harness.console import chosen
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import BenchmarkError, fresh_host
from benchmarks.harness.result import save, spread
from benchmarks.harness.table_command import MeasuredRow, Report, add_markdown, add_only, report_rows, run_table

GOAL = 0.5  # largest ratio of the first step's time after an edit to that of torch.compile's warm start


@dataclass
class Row(MeasuredRow):
    """One edit. Each sample replaces ``{n}`` by a different number."""

    edit: Edit
    expected: frozenset[str] = frozenset()  # functions that must be traced
    traced: set[str] = field(default_factory=set)  # functions that were traced
    frames: list[int] = field(default_factory=list)  # frames that Dynamo traced, by sample
    ours_s: list[float] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.edit.program}, {self.edit.what}"

    @property
    def ratios(self) -> list[float]:
        return [ours / plain for ours, plain in zip(self.ours_s, self.plain_s, strict=True)]

    @property
    def as_expected(self) -> bool:
        """Whether exactly the expected functions were traced. If no function is expected, Dynamo must not have traced
        any frame.
        """
        return self.traced == self.expected and (bool(self.expected) or not any(self.frames))

    @property
    def met(self) -> bool:
        return statistics.median(self.ratios) <= GOAL

    @property
    def right(self) -> bool:
        return not self.error and not self.different and self.as_expected

    def cells(self) -> list[str]:
        if self.error:
            return [self.edit.program, self.edit.what, "", "", "", "", "", "error"]
        to_trace = ", ".join(sorted(name.rpartition("<locals>.")[2] for name in self.expected)) or "nothing"
        return [
            self.edit.program,
            self.edit.what,
            to_trace,
            " ".join(map(str, self.frames)),
            spread(self.ours_s),
            spread(self.plain_s),
            spread(self.ratios),
            "different" if self.different else "yes" if self.as_expected else "no",
        ]

    def raw(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in ("frames", "ours_s", "plain_s", "different", "error")}
        return {"program": self.edit.program, "edit": self.edit.what, "traced": sorted(self.traced), **kept}

    def remarks(self) -> list[str]:
        if self.error or self.different or self.as_expected:
            return super().remarks()
        return [
            f"traced {', '.join(sorted(self.traced)) or 'nothing'} ({', '.join(map(str, self.frames))} frames); "
            f"to be traced: {', '.join(sorted(self.expected)) or 'nothing'}"
        ]


HEADERS = [
    "program",
    "edit",
    "to be traced",
    "frames traced",
    "first step, s",
    "torch.compile warm, s",
    "ratio",
    "as expected",
]


def examine(edits: Sequence[Edit], repeats: int, quick: bool, say: Say) -> list[Row]:
    rows = []
    for program, group in groupby(edits, lambda edit: edit.program):
        for row in _of_one_program(program, list(group), repeats, quick, say):
            rows.append(row)
            say(f"{len(rows)}/{len(edits)}  {'  '.join(row.cells())}")
    return rows


def _of_one_program(program: str, edits: Sequence[Edit], repeats: int, quick: bool, say: Say) -> Iterator[Row]:
    with fresh_host() as our_host, fresh_host() as plain_host:
        our_host.start_daemon()
        sides = {
            "ours": Project(program, our_host, hook=True, quick=quick),
            "plain": Project(program, plain_host, hook=False, quick=quick),
        }
        before = {side: project.run() for side, project in sides.items()}
        say(
            f"{program}: both caches are filled; the first step took {before['ours'].first_s:.1f} s, "
            f"torch.compile's {before['plain'].first_s:.1f} s"
        )
        for edit in edits:
            row = Row(edit)
            row.expected = edit.traced if edit.traced is not ALL else _traced(before["ours"])
            try:
                for number in range(1, repeats + 1):
                    _sample(row, sides, number)
            except (BenchmarkError, AssertionError) as error:
                row.error = str(error)
            yield row


def _sample(row: Row, sides: dict[str, Project], number: int) -> None:
    found: dict[str, Run] = {}
    for side in sides if number % 2 else reversed(sides):
        project = sides[side]
        found[side] = project.edited(row.edit, number, project.run)
    ours, plain = found["ours"], found["plain"]
    row.ours_s.append(ours.first_s)
    row.plain_s.append(plain.first_s)
    row.frames.append(ours.frames)
    row.traced |= _traced(ours)
    row.different += unequal(ours.values, plain.values)


def _traced(run: Run) -> frozenset[str]:
    return frozenset(name for name, state in run.functions.items() if state == "traced")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.edits", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small models, one sample: no figures to be quoted")
    add_only(parser, "these programs")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="samples of each edit, by default 3")
    add_markdown(parser)
    arguments = parser.parse_args()
    wanted = chosen(parser, arguments.only, dict.fromkeys(edit.program for edit in EDITS))
    edits = [edit for edit in EDITS if edit.program in wanted]

    def measure(say: Say) -> Report:
        rows = examine(edits, 1 if arguments.quick else arguments.repeats, arguments.quick, say)
        return report(rows, save({"rows": [row.raw() for row in rows]}, arguments.quick, "edits"))

    return run_table(arguments, measure)


def report(rows: Sequence[Row], path: Path) -> Report:
    """``path``: the file with the raw samples."""
    right = sum(row.right for row in rows)
    untraced = [row for row in rows if not row.error and not row.expected]
    ratios = [ratio for row in untraced for ratio in row.ratios]
    missed = [row for row in untraced if not row.met]
    totals = f"{right} of {len(rows)} edits: traced was what had to be, and the steps are plain's."
    if ratios:
        totals += (
            f" Where nothing had to be traced: ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f}), goal {GOAL}, missed by {len(missed)} of {len(untraced)}."
        )
    totals += f"\nRaw samples: {path}\n"
    return report_rows(HEADERS, rows, totals, passed=right == len(rows) and not missed)
