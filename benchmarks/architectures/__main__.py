"""A table of architectures: is each compiled by the daemon, hit in the next process, and equal to eager?

`make architectures` (`python -m benchmarks.architectures`). Exit status 1 when one row is not as it should be.
"""

from __future__ import annotations

import time

from benchmarks.architectures.rows import asked, conclude, rows_parser
from benchmarks.architectures.table import HEADERS, examine
from benchmarks.harness.console import begin
from benchmarks.harness.hosts import BenchmarkError


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
    return conclude(console, arguments, HEADERS, rows, f"; {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    raise SystemExit(main())
