"""Runs distributed programs by torchrun with gloo. Checks each rank's result, and counts served graphs and compiles.

`make ranks` (`python -m benchmarks.ranks`). Exits 1 if a rank's result differs from eager and from plain torch.compile,
if a case fails, or if a graph was not served.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.console import chosen
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import DEFAULTS, LIMIT_S, Host, output_of
from benchmarks.harness.result import list_by_group, list_counts, markdown
from benchmarks.harness.served import ServedRow, count_untraced, describe_counts
from benchmarks.harness.table_command import (
    Report,
    add_files,
    add_only,
    measure_rows,
    read_records,
    report_rows,
    run_table,
)
from benchmarks.models.compare import compare_steps
from benchmarks.ranks import CASES
from precompiled import wire
from precompiled.client import ask

PAGE = "reference/coverage.md"
HANGS_S = 900.0
RUNS = ("first", "second")


@dataclass
class Row(ServedRow):
    """One case. The first run starts with empty caches; the second run is a later start."""

    name: str
    kind: str
    about: str
    ranks: int
    compiled: list[int] = field(default_factory=list)  # number of graphs that the daemon compiled
    of_one_rank: int = 0  # largest number of graphs that a rank had in the first run

    @property
    def right(self) -> bool:
        return not (self.error or self.different)

    @property
    def usual(self) -> bool:
        """Whether the page lists the case without figures."""
        served = self.right and self.graphs == self.served
        return served and not (self.as_plain or self.reasons or self.kept_from_packages or self.traced[-1])

    @property
    def described(self) -> str:
        text = self.about if self.ranks == 2 else f"{self.about} ({self.ranks} ranks)"
        return f"*{text}*" if self.compiled[0] > self.of_one_rank else text

    def cells(self) -> list[str]:
        equal = "error" if self.error else "no" if self.different else "as plain" if self.as_plain else "yes"
        return [
            self.name,
            str(self.ranks),
            equal,
            self.shares,
            " ".join(map(str, self.compiled)),
            str(self.of_one_rank),
            " ".join(map(str, self.traced)),
            self.first_steps,
            list_counts(Counter(self.reasons) + Counter(self.kept_from_packages)),
        ]


HEADERS = [
    "case",
    "ranks",
    "equal to eager",
    "graphs served, in two starts",
    "compiled",
    "graphs of one rank",
    "frames traced",
    "first step, s",
    "reasons",
]


def examine(names: Sequence[str], say: Say) -> list[Row]:
    """Run the cases one after the other with one daemon."""
    cases = [CASES[name] for name in names]
    return measure_rows([Row(case.name, case.kind, case.about, case.ranks) for case in cases], _examine, say)


def _examine(host: Host, row: Row) -> None:
    start(host, row, "eager", hook=False, extra={"TORCH_COMPILE_DISABLE": "1"})
    for run in RUNS:
        before = compiled(host)
        ranks = start(host, row, run, hook=True, extra=DEFAULTS)
        row.compiled.append(compiled(host) - before)
        row.of_one_rank = row.of_one_rank or max(len(found["reports"]) for found in ranks)
        row.add_run(ranks)
    off = {run: _differences(host, row, run, "eager") for run in RUNS}
    if any(off.values()):
        start(host, row, "plain", hook=False, extra={})
        if _differences(host, row, "plain", "eager"):
            off = {run: _differences(host, row, run, "plain") for run in RUNS}
            row.as_plain = not any(off.values())
    row.different = [f"{run} start, {text}" for run, texts in off.items() for text in texts]


def compiled(host: Host) -> int:
    reply: wire.StatsReply = ask.request(host.settings, wire.Stats(), LIMIT_S)
    return reply.compiled


def _differences(host: Host, row: Row, run: str, expected: str) -> list[str]:
    found = []
    for rank in range(row.ranks):
        got, wanted = (torch.load(f"{_file(host, row, name)}-{rank}.pt") for name in (run, expected))
        found += [f"rank {rank}, {text}" for text in compare_steps(got, wanted, half=CASES[row.name].half)]
    return found


def start(host: Host, row: Row, run: str, *, hook: bool, extra: dict[str, str]) -> list[dict[str, Any]]:
    """Run the case and return each rank's answer."""
    file = _file(host, row, run)
    spec = {"name": row.name, "file": str(file), "wait": hook}
    command = host.command(spec, hook=hook, extra={**extra, **host.temporary()}, program="ranks.program")
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
        "--nproc-per-node",
        str(row.ranks),
    ]
    output_of({**command, "argv": [*launcher, *command["argv"][1:]]}, HANGS_S)
    return [json.loads(Path(f"{file}-{rank}.json").read_text()) for rank in range(row.ranks)]


def _file(host: Host, row: Row, run: str) -> Path:
    return host.root / f"{row.name}-{run}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    add_only(parser, "these cases")
    read = "run nothing: such a file has the rows"
    add_files(parser, json="write the rows there", read=read, docs=f"table of docs/{PAGE}")
    arguments = parser.parse_args()
    names = chosen(parser, arguments.only, CASES)

    def measure(say: Say) -> Report:
        if not arguments.read:
            return report(examine(names, say))
        known = {row["name"]: Row(**row) for rows in read_records(arguments) for row in rows}
        return report([known[name] for name in names if name in known])

    return run_table(arguments, measure, mark="make ranks ARGS=--docs", page=PAGE)


def report(rows: Sequence[Row]) -> Report:
    right = sum(row.right for row in rows)
    totals = [
        f"{len(rows)} cases were run, {right} are equal to eager or to plain torch.compile on each rank.",
        describe_counts(rows, "All ranks in both starts"),
        f"{count_untraced(rows, 1)} cases trace nothing in their second start.",
    ]
    usual = [(row.kind, row.described) for row in rows if row.usual]
    described = [[row.about, *_documented(row.cells())[1:]] for row in rows if not row.usual]
    return report_rows(
        HEADERS,
        rows,
        " ".join(totals),
        passed=right == len(rows) and all(row.graphs == row.served for row in rows),
        parts=[
            "\n".join(totals),
            "Results of these cases equal eager's on each rank, and the second start traces nothing. A case has two"
            " ranks unless it\nnames a different number. In cases in italics, ranks need different artifacts.",
            list_by_group(usual),
            "The other cases:",
            markdown(_documented(HEADERS), described),
        ],
    )


def _documented(cells: Sequence[str]) -> list[str]:
    """The cells that the page shows: all except the seconds."""
    return [*cells[:7], *cells[8:]]
