"""Every operator that torch has samples for: is it compiled by the daemon, and equal to eager?

`make operators` (`python -m benchmarks.operators`); about half an hour on 2 cores. The exit status is 1 when a row
differs from eager and plain torch.compile's does not, or more than 1 % of the graphs were compiled in the client.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from benchmarks.harness.console import begin, show
from benchmarks.harness.hosts import BenchmarkError
from benchmarks.operators import samples
from benchmarks.operators.table import Found, examine

IN_PROCESS = 0.01


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operators", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="these operators (repeatable; a,b)")
    parser.add_argument("--dtype", action="append", choices=samples.DTYPES, help="these only (repeatable)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth row: a look, no figure")
    parser.add_argument("--json", metavar="FILE", help="write each row's answer there")
    arguments = parser.parse_args()
    names = {name for item in arguments.only or [] for name in item.split(",")}
    if unknown := names - samples.operators().keys():
        parser.error(f"torch has no samples for {', '.join(sorted(unknown))}")
    rows = samples.rows(tuple(arguments.dtype or samples.DTYPES))
    rows = [row for row in rows if not names or row[0] in names][:: arguments.every]
    console, say = begin(160)
    started = time.monotonic()
    try:
        found = examine(rows, say)
    except BenchmarkError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    _show(console, found, rows)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"rows": list(found.answers.values()), "plain": list(found.plain.values())}, file, indent=1)
    graphs, reasons = found.graphs()
    right = not found.wrong() and sum(reasons.values()) <= IN_PROCESS * graphs
    console.print(f"\n{time.monotonic() - started:.0f} s", highlight=False)
    return 0 if right else 1


def _show(console: Any, found: Found, rows: list[samples.Row]) -> None:
    table = []
    for dtype in dict.fromkeys(dtype for _name, dtype in rows):
        part = Found({row: answer for row, answer in found.answers.items() if row[1] == dtype}, found.plain)
        states, (graphs, reasons) = part.states(), part.graphs()
        table.append([
            dtype, str(len(part.answers)), str(states.get("no sample", 0)), str(states.get("equal", 0)),
            str(states.get("as plain", 0)), str(len(part.wrong())), str(graphs), str(sum(reasons.values())),
        ])  # fmt: skip
    headers = ["dtype", "operators", "no sample", "equal", "not, as plain", "wrong", "graphs", "not by the daemon"]
    show(console, headers, table)
    graphs, reasons = found.graphs()
    total = sum(reasons.values())
    console.print(f"\n{total} of {graphs} graphs were not compiled by the daemon", highlight=False)
    for reason, number in sorted(reasons.items(), key=lambda item: -item[1]):
        console.print(f"    {number:5} {reason}", highlight=False)
    for row in found.wrong():
        answer = found.answers[row]
        said = f"{' '.join(row)}: {answer['state']}: {answer['why'][-300:]}"
        console.print(said, style="red", markup=False, highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
