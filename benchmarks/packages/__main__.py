"""Packages: a table of architectures, and the first call of the second process beside plain torch.compile's warm start.

`python -m benchmarks.packages` (the table), `... --first-call`, `... --recording`, `... --noticing` (the measures).
Exit status 1 when a row is not as it should be (a frame was traced in the second process, or something differs from
eager), or the goal is missed.
"""

from __future__ import annotations

import statistics

from benchmarks.architectures.rows import asked, conclude, rows_parser
from benchmarks.harness.console import begin
from benchmarks.harness.hosts import BenchmarkError
from benchmarks.packages.first_call import GOAL, first_call, recording
from benchmarks.packages.noticing import noticing
from benchmarks.packages.table import HEADERS, examine


def main() -> int:
    parser = rows_parser("python -m benchmarks.packages", __doc__)
    parser.add_argument("--first-call", action="store_true", help="the first call with a package, not the table")
    parser.add_argument("--recording", action="store_true", help="what recording costs the first call, not the table")
    parser.add_argument("--noticing", action="store_true", help="what it costs to notice calls during a trace")
    parser.add_argument("--quick", action="store_true", help="a small model for a measure: no figure to be quoted")
    arguments = parser.parse_args()
    names = asked(parser, arguments)
    console, say = begin(200, stderr=arguments.json)
    try:
        for wanted, measure, what, goal in (
            (arguments.noticing, noticing, "a trace in which calls are noticed, over one without", None),
            (arguments.recording, recording, "first call that records, over one that does not", None),
            (arguments.first_call, first_call, "first call beyond a step, package / torch.compile warm", GOAL),
        ):
            if wanted:
                ratios = measure(arguments.quick, say)
                median = statistics.median(ratios)
                said = f"{min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs"
                said = said if goal is None else f"goal {goal}; {said}"
                console.print(f"{what}: {median:.3f} ({said})", highlight=False)
                return 0 if goal is None or median <= goal else 1
        rows = examine(names, say)
    except BenchmarkError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    return conclude(console, arguments, HEADERS, rows)


if __name__ == "__main__":
    raise SystemExit(main())
