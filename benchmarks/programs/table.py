"""Runs each program of the table three times, and reports served graphs, new traces, and differences from eager. The
programs use other libraries.

`make programs` (`python -m benchmarks.programs`). Exits 1 if a program differs from eager and from plain torch.compile,
if it fails, or if fewer than 99 % of all graphs are served.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch

from benchmarks.harness.console import chosen
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import DEFAULTS, BenchmarkError, Host
from benchmarks.harness.result import list_by_group, list_counts, markdown
from benchmarks.harness.served import ServedRow, count_untraced, describe_counts, is_served, sum_graphs
from benchmarks.harness.table_command import Report, add_files, add_only, measure_rows, report_rows, run_table
from benchmarks.models.compare import compare_steps
from benchmarks.programs import PROGRAMS

PAGE = "reference/coverage.md"
SERVED = 0.99  # smallest share of all graphs that must be served
RUNS = ("first", "second", "third")
_KILLED = re.compile(r"ended with -\d+")  # the message about a program that a signal ended


@dataclass
class Row(ServedRow):
    """One program. The first run starts with empty caches; the next two are later processes."""

    name: str
    library: str
    about: str
    absent: tuple[str, ...] = ()  # missing modules; if there are any, the program does not run
    packages: list[int] = field(default_factory=list)  # number of graphs from packages, which are not traced

    @property
    def equal(self) -> bool:
        """Whether the values equal eager's, or plain torch.compile differs (or crashes) in the same way."""
        return self.as_plain if self.error else not self.different

    @property
    def right(self) -> bool:
        """Whether the values are equal, and every graph was served in each run that ended normally."""
        return self.equal and self.graphs == self.served and (bool(self.error) or min(self.graphs, default=0) > 0)

    @property
    def usual(self) -> bool:
        """Whether the page lists the program without figures."""
        wrong = self.absent or self.error or self.as_plain or not self.right
        return not (wrong or self.reasons or self.kept_from_packages or self.traced[-1])

    def cells(self) -> list[str]:
        if self.absent:
            return [self.name, self.library, "", "", "", "", "", f"not run: no {', '.join(self.absent)}"]
        alike = "as plain" if self.as_plain else "yes"
        equal = "no" if self.different else alike
        if self.error:
            equal = "dies, as plain" if self.as_plain else "error"
        reasons = ", ".join(filter(None, [list_counts(self.reasons), list_counts(self.kept_from_packages)]))
        return [
            self.name,
            self.library,
            self.shares,
            " ".join(map(str, self.packages)),
            " ".join(map(str, self.traced)),
            equal,
            self.first_steps,
            reasons,
        ]


HEADERS = [
    "program",
    "library",
    "graphs served, in three runs",
    "of them from packages",
    "frames traced",
    "equal to eager",
    "first step, s",
    "reasons",
]


def examine(names: Sequence[str], say: Say) -> list[Row]:
    """Run all programs with one daemon, two at a time, because imports take most of the time."""
    rows = []
    for name in names:
        program = PROGRAMS[name]
        absent = tuple(module for module in program.needs if find_spec(module) is None)
        rows.append(Row(name, program.library, program.about, absent))
    return measure_rows(rows, _examine, say, clients=2)


def _examine(host: Host, row: Row) -> None:
    if row.absent:
        return
    try:
        _compare(host, row)
    except BenchmarkError as error:
        row.as_plain = bool(_KILLED.search(str(error))) and _dies(host, row)
        raise


def _compare(host: Host, row: Row) -> None:
    _, expected = _run(host, row, "eager", {"TORCH_COMPILE_DISABLE": "1"})
    results = {}
    for run in RUNS:
        found, results[run] = _run(host, row, run, DEFAULTS, hook=True)
        row.add_run([found])
        row.packages.append(sum(is_served(report) and report["source"] == "package" for report in found["reports"]))
        row.different += [f"{run} run, {text}" for text in compare_steps(results[run], expected)]
    if row.different:
        # If a program is numerically unstable (chaos, ties), compiled code differs from eager by more than rounding.
        _, plain = _run(host, row, "plain")
        if compare_steps(plain, expected):
            _, swapped = _run(host, row, "swapped", eager_steps=1)
            row.different = [
                text
                for values in results.values()
                # With precompiled, the first run is eager before its swap. ``swapped`` is eager for one step, too.
                if compare_steps(values, swapped)
                for text in compare_steps(values, plain)
            ]
            row.as_plain = not row.different


def _dies(host: Host, row: Row) -> bool:
    """Whether a signal ends the program with plain torch.compile, too: Inductor's code may crash the program."""
    try:
        _run(host, row, "plain")
    except BenchmarkError as error:
        return bool(_KILLED.search(str(error)))
    return False


def _run(
    host: Host,
    row: Row,
    run: str,
    variables: Mapping[str, str] | None = None,
    *,
    hook: bool = False,
    eager_steps: int = 0,
) -> tuple[dict[str, Any], list[Any]]:
    """Return what the process printed, and the results of its steps."""
    file = host.root / f"{row.name}-{run}.pt"
    spec = {"name": row.name, "values": str(file), "wait": hook, "eager_steps": eager_steps}
    found = host.run(spec, hook=hook, extra={**(variables or {}), **host.temporary()}, program="programs.program")
    return found, torch.load(file)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    add_only(parser, "these programs")
    add_files(parser, json="write the rows there", docs=f"tables of docs/{PAGE}")
    arguments = parser.parse_args()
    names = chosen(parser, arguments.only, PROGRAMS)
    return run_table(arguments, lambda say: report(examine(names, say)), mark="make programs ARGS=--docs", page=PAGE)


def report(rows: Sequence[Row]) -> Report:
    run = [row for row in rows if not row.absent]
    graphs, served = sum_graphs(rows)
    equal = sum(row.equal for row in run)
    totals = [
        f"{len(run)} programs of {len({row.library for row in run})} libraries were run, {equal} are equal to eager"
        " or to plain torch.compile.",
        describe_counts(rows, "The three runs of all programs"),
        f"{count_untraced(rows, 1)} programs trace nothing in their second run, {count_untraced(rows, 2)} in their"
        " third.",
    ]
    usual = [(row.library, row.about) for row in rows if row.usual]
    described = [_documented([row.about, *row.cells()[1:]]) for row in rows if not row.usual]
    return report_rows(
        HEADERS,
        rows,
        " ".join(totals),
        passed=equal == len(run) and served >= SERVED * graphs > 0,
        parts=[
            "\n".join(totals),
            "All graphs of these programs are served. Results equal eager's, and the third run traces nothing:",
            list_by_group(usual),
            "The other programs:",
            markdown(_documented(HEADERS), described),
        ],
    )


def _documented(cells: Sequence[str]) -> list[str]:
    """The cells that the page shows: all except the graphs from packages and the seconds."""
    return [*cells[:3], *cells[4:6], *cells[7:]]
