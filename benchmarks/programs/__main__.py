"""Programs of others, three times each: is every graph served, what is traced again, is it equal to eager?

`make programs` (`python -m benchmarks.programs`). The exit status is 1 when a program differs from eager (and from
plain torch.compile), or ends with an error, or fewer than 99 % of all graphs were served.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.harness.console import begin, chosen, show
from benchmarks.harness.hosts import BenchmarkError
from benchmarks.harness.result import markdown, write_part
from benchmarks.programs import PROGRAMS
from benchmarks.programs.table import HEADERS, Row, examine

SERVED = 0.99


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="these programs (repeatable; a,b)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/reference/coverage.md")
    arguments = parser.parse_args()
    names = chosen(parser, arguments.only, PROGRAMS)
    console, say = begin(200)
    started = time.monotonic()
    try:
        rows = examine(names, say)
    except BenchmarkError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    show(console, HEADERS, [row.cells() for row in rows], [None if row.right else "red" for row in rows])
    for row in rows:
        for text in row.remarks():
            console.print(f"{row.name}: {text}", style="red", markup=False, highlight=False)
    sums = _sums(rows)
    console.print(f"\n{' '.join(sums)} {time.monotonic() - started:.0f} s", highlight=False)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)
    if arguments.docs:
        _write_page(rows, sums)
    graphs, served = _counts(rows)
    equal = all(row.absent or row.equal for row in rows)
    return 0 if equal and served >= SERVED * graphs > 0 else 1


def _counts(rows: Sequence[Row]) -> tuple[int, int]:
    return sum(sum(row.graphs) for row in rows), sum(sum(row.served) for row in rows)


def _sums(rows: Sequence[Row]) -> list[str]:
    """What all programs come to, in sentences."""
    run = [row for row in rows if not row.absent]
    graphs, served = _counts(rows)
    equal = sum(row.equal for row in run)
    untraced = sum(len(row.traced) > 1 and row.traced[1] == 0 for row in run)
    steady = sum(len(row.traced) > 2 and row.traced[2] == 0 for row in run)
    return [
        f"{len(run)} programs of {len({row.library for row in run})} libraries were run, {equal} are equal to eager"
        " or to plain torch.compile.",
        f"Of {graphs} graphs, the three runs added up, {served} ({served / max(graphs, 1):.1%}) were served.",
        f"{untraced} programs trace nothing in their second run, {steady} in their third.",
    ]


def _write_page(rows: Sequence[Row], sums: Sequence[str]) -> None:
    reasons: Counter[str] = Counter()
    for row in rows:
        reasons.update(row.reasons)
        reasons.update(row.kept_from_packages)
    told = [[f"`{reason}`", str(number)] for reason, number in reasons.most_common()]
    described = [[row.about, *row.cells()[1:]] for row in rows]
    tables = markdown(HEADERS, described), markdown(["reason", "graphs or functions"], told)
    write_part("make programs ARGS=--docs", ["\n".join(sums), *tables], "reference/coverage.md")


if __name__ == "__main__":
    raise SystemExit(main())
