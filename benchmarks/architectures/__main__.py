"""A table of architectures: is each compiled by the daemon, hit in the next process, and equal to eager?

`make architectures` (`python -m benchmarks.architectures`). Exit status 1 when one row is not as it should be.
"""

from __future__ import annotations

import time

from benchmarks.architectures.rows import asked, conclude, rows_parser, show_rows
from benchmarks.architectures.table import HEADERS, Row, examine
from benchmarks.harness.console import begin
from benchmarks.harness.hosts import BenchmarkError

SHOWN = 4  # differences of a row


def main() -> int:
    parser = rows_parser("python -m benchmarks.architectures", __doc__)
    arguments = parser.parse_args()
    names = asked(parser, arguments)
    console, say = begin(200, stderr=arguments.json)
    started = time.monotonic()
    try:
        rows = examine(names, say)
    except BenchmarkError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    show_rows(console, HEADERS, rows, _remarks)
    right = sum(row.right for row in rows)
    console.print(
        f"\n{right} of {len(rows)} rows are as they should be; {time.monotonic() - started:.0f} s", highlight=False
    )
    return conclude(arguments, HEADERS, rows)


def _remarks(row: Row) -> list[str]:
    more = len(row.different) - SHOWN
    shown = [*row.different[:SHOWN], *([f"and {more} more differences (--json has them)"] if more > 0 else [])]
    return [*row.errors, *row.messages, *shown]


if __name__ == "__main__":
    raise SystemExit(main())
