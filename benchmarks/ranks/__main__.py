"""Distributed programs, by torchrun and gloo: is each rank's result right, what is served, what compiled how often?

`make ranks` (`python -m benchmarks.ranks`). The exit status is 1 when a rank's result differs from eager (and from
plain torch.compile), or a case ends with an error, or a graph was not served.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness.console import begin, chosen, show
from benchmarks.harness.result import markdown, write_part
from benchmarks.ranks import CASES
from benchmarks.ranks.table import HEADERS, Row, examine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="these cases (repeatable; a,b)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there")
    parser.add_argument(
        "--read", action="append", type=Path, metavar="FILE", help="run nothing: such a file has the rows"
    )
    parser.add_argument("--docs", action="store_true", help="write the table of docs/reference/coverage.md")
    arguments = parser.parse_args()
    names = chosen(parser, arguments.only, CASES)
    console, say = begin(200)
    started = time.monotonic()
    if arguments.read:
        told = {row["name"]: Row(**row) for path in arguments.read for row in json.loads(path.read_text())}
        rows = [told[name] for name in names if name in told]
    else:
        rows = examine(names, say)
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
        write_page(rows)
    served = all(row.graphs == row.served for row in rows)
    return 0 if served and all(row.right for row in rows) else 1


def _sums(rows: Sequence[Row]) -> list[str]:
    """What all cases come to, in sentences."""
    graphs, served = sum(sum(row.graphs) for row in rows), sum(sum(row.served) for row in rows)
    right = sum(row.right for row in rows)
    untraced = sum(len(row.traced) > 1 and row.traced[1] == 0 for row in rows)
    compiled, needed = sum(row.compiled[0] for row in rows if row.compiled), sum(row.of_one_rank for row in rows)
    return [
        f"{len(rows)} cases were run, {right} are equal to eager or to plain torch.compile on each rank.",
        f"Of {graphs} graphs, all ranks and both starts added up, {served} ({served / max(graphs, 1):.1%}) were"
        " served.",
        f"In the first start {compiled} were compiled, where one rank has {needed}.",
        f"{untraced} cases trace nothing in their second start.",
    ]


def write_page(rows: Sequence[Row]) -> None:
    told = [[row.about, row.kind, *row.cells()[1:]] for row in rows]
    table = markdown(["case", "kind", *HEADERS[1:]], told)
    write_part("make ranks ARGS=--docs", ["\n".join(_sums(rows)), table, _reasons(rows)], "reference/coverage.md")


def _reasons(rows: Sequence[Row]) -> str:
    reasons: Counter[str] = Counter()
    for row in rows:
        reasons.update(row.reasons)
        reasons.update(row.kept_from_packages)
    return markdown(
        ["reason", "graphs or functions"], [[f"`{reason}`", str(number)] for reason, number in reasons.most_common()]
    )


if __name__ == "__main__":
    raise SystemExit(main())
