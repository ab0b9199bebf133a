"""Starts after an edit: is traced what has to be, and what takes the first step beside torch.compile's warm start?

`make edits` (`python -m benchmarks.edits`). Each program fills the store and Inductor's cache once. After each edit it
is run again with precompiled (mode eager, packages on, as by default), and as plain torch.compile. A first step is all
from before the first compiled call to the end of the first training step: evaluations too, imports not. The exit status
is 1 when something else was traced than what has to be, a step's values are not plain's, or the goal is missed by the
median of an edit after which nothing has to be traced.
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks.edits.edits import EDITS
from benchmarks.edits.table import GOAL, HEADERS, examine
from benchmarks.harness.console import begin, chosen, show
from benchmarks.harness.hosts import BenchmarkError
from benchmarks.harness.result import markdown, save


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.edits", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small models, one sample: no figures to be quoted")
    parser.add_argument("--only", action="append", metavar="NAME", help="these programs (repeatable; a,b)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="samples of each edit, by default 3")
    parser.add_argument("--markdown", action="store_true", help="also print the table for docs/reference/benchmarks.md")
    arguments = parser.parse_args()
    wanted = chosen(parser, arguments.only, dict.fromkeys(edit.program for edit in EDITS))
    edits = [edit for edit in EDITS if edit.program in wanted]
    console, say = begin(200)
    try:
        rows = examine(edits, 1 if arguments.quick else arguments.repeats, arguments.quick, say)
    except BenchmarkError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    show(console, HEADERS, [row.cells() for row in rows], [None if row.right else "red" for row in rows])
    for row in rows:
        for text in filter(None, row.remarks()):
            console.print(f"{row.edit.program}, {row.edit.what}: {text}", style="red", markup=False, highlight=False)
    right = sum(row.right for row in rows)
    untraced = [row for row in rows if not row.error and not row.expected]
    ratios = [ratio for row in untraced for ratio in row.ratios]
    missed = [row for row in untraced if not row.met]
    told = f"\n{right} of {len(rows)} edits: traced was what had to be, and the steps are plain's."
    if ratios:
        told += (
            f" Where nothing had to be traced: ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
            f"{max(ratios):.2f}), goal {GOAL}, missed by {len(missed)} of {len(untraced)}."
        )
    console.print(told, highlight=False)
    if arguments.markdown:
        print(f"\n{markdown(HEADERS, [row.cells() for row in rows])}")
    path = save({"rows": [row.raw() for row in rows]}, arguments.quick, "edits")
    console.print(f"Raw samples: {path}", highlight=False)
    return 0 if right == len(rows) and not missed else 1


if __name__ == "__main__":
    raise SystemExit(main())
