"""The measures against their goals (`python -m benchmarks`). Exit status 1 when one is missed."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from rich.console import Console
from rich.table import Table

from benchmarks.harness.effort import FULL, QUICK, Effort, Say
from benchmarks.harness.hosts import BenchmarkError
from benchmarks.harness.result import HEADERS, RAW_HEADERS, Result, banner, markdown, save
from benchmarks.measures.daemon_memory import daemon_memory
from benchmarks.measures.load import load
from benchmarks.measures.lookup import lookup
from benchmarks.measures.pace import pace
from benchmarks.measures.ranks import ranks_at_once
from benchmarks.measures.start_up import start_up
from benchmarks.measures.steady_state import steady_state
from benchmarks.measures.units import units
from benchmarks.starts.goals import first_calls

# One of them may stand for several letters.
MEASURES: dict[str, Callable[[Effort, Say], list[Result]]] = {
    "a": first_calls,
    "b": first_calls,
    "c": steady_state,
    "d": ranks_at_once,
    "e": start_up,
    "f": daemon_memory,
    "g": lookup,
    "h": first_calls,
    "i": load,
    "j": pace,
    "k": units,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small models, few repeats: no figures to be quoted")
    parser.add_argument("--only", default="".join(MEASURES), metavar="abc", help="letters of the measures to take")
    parser.add_argument("--repeats", type=int, metavar="N", help="fresh processes of each kind, where that is asked")
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many processes (d) starts at once")
    parser.add_argument("--markdown", action="store_true", help="print the tables for docs/benchmarks.md as well")
    arguments = parser.parse_args()
    letters = [letter for letter in arguments.only if letter != ","]
    if unknown := set(letters) - set(MEASURES):
        parser.error(f"there is no measure {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    # As Ctrl-C does: daemons and directories of the sample in hand are cleaned up on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    effort = replace(QUICK if arguments.quick else FULL, ranks=arguments.ranks)
    if arguments.repeats:
        effort = replace(effort, repeats=arguments.repeats)
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    banner(console)

    results: list[Result] = []
    broken = []
    # What stands for several letters is taken once.
    for measure in dict.fromkeys(MEASURES[letter] for letter in letters):
        started = time.monotonic()
        console.print(f"\n[bold]{measure.__doc__}[/]")
        try:
            results += measure(effort, lambda text: console.print(f"    {text}", markup=False, highlight=False))
        except BenchmarkError as error:
            # The other measures still count; this one is told again at the end.
            broken.append(str(measure.__doc__))
            console.print(f"    {error}", style="bold red", markup=False, highlight=False)
        console.print(f"    {time.monotonic() - started:.0f} s", style="bright_black")

    rows = [result.row() for result in results]
    raw_rows = [row for result in results for row in result.raw_row()]
    for headers, lines in ((HEADERS, rows), (RAW_HEADERS, raw_rows)):
        table = Table(*headers, box=None, pad_edge=False, header_style="bold")
        for line in lines:
            table.add_row(*line)
        console.print()
        console.print(table)
    if arguments.markdown:
        print(f"\n{markdown(HEADERS, rows)}\n\n{markdown(RAW_HEADERS, raw_rows)}")
    path = save({"results": [asdict(result) for result in results]}, arguments.quick, "measures")
    console.print(f"\nRaw samples: {path}", highlight=False)
    for title in broken:
        console.print(f"Not measured (see above): {title}", style="bold red", markup=False)
    return 0 if not broken and all(result.met for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
