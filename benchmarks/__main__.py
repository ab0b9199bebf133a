"""Measures the figures and compares them with their goals (`python -m benchmarks`). Exits 1 if a goal is missed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from benchmarks.harness.console import begin, show_results
from benchmarks.harness.effort import FULL, QUICK, Effort, Say
from benchmarks.harness.hosts import BenchmarkError
from benchmarks.harness.result import Result, save
from benchmarks.measures.daemon_memory import daemon_memory
from benchmarks.measures.kernel_reuse import kernel_reuse
from benchmarks.measures.layers import layers
from benchmarks.measures.lengths import lengths
from benchmarks.measures.load import load
from benchmarks.measures.lookup import lookup
from benchmarks.measures.pace import pace
from benchmarks.measures.pieces_pace import pieces_pace
from benchmarks.measures.ranks import ranks_at_once
from benchmarks.measures.start_up import start_up
from benchmarks.measures.steady_state import steady_state
from benchmarks.measures.units import units
from benchmarks.measures.variants import autotuned, size_arguments
from benchmarks.starts.goals import first_calls

# Maps each letter of docs/reference/benchmarks.md to its measure. Several letters may share one measure.
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
    "l": lengths,
    "m": layers,
    "n": kernel_reuse,
    "o": pieces_pace,
    "p": size_arguments,
    "q": autotuned,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small models, few repeats: no figures to be quoted")
    parser.add_argument("--only", default="".join(MEASURES), metavar="abc", help="letters of the measures to take")
    parser.add_argument("--repeats", type=int, metavar="N", help="fresh processes of each kind, where that is asked")
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="how many processes (d) starts at once")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of (c), (d), (i), (j), (k)")
    parser.add_argument("--markdown", action="store_true", help="also print tables for docs/reference/benchmarks.md")
    arguments = parser.parse_args()
    letters = [letter for letter in arguments.only if letter != ","]
    if unknown := set(letters) - set(MEASURES):
        parser.error(f"there is no measure {', '.join(sorted(unknown))}; there are {', '.join(MEASURES)}")
    effort = replace(QUICK if arguments.quick else FULL, ranks=arguments.ranks, device=arguments.device)
    if arguments.repeats:
        effort = replace(effort, repeats=arguments.repeats)
    console, say = begin(140)

    results: list[Result] = []
    broken = []
    # If several letters share a measure, run it once.
    for measure in dict.fromkeys(MEASURES[letter] for letter in letters):
        started = time.monotonic()
        console.print(f"\n[bold]{measure.__doc__}[/]")
        try:
            results += measure(effort, say)
        except BenchmarkError as error:
            # Continue with the next measure. The summary repeats the failure.
            broken.append(str(measure.__doc__))
            console.print(f"    {error}", style="bold red", markup=False, highlight=False)
        console.print(f"    {time.monotonic() - started:.0f} s", style="bright_black")

    show_results(console, results, arguments.markdown)
    path = save({"results": [asdict(result) for result in results]}, arguments.quick, "measures")
    console.print(f"\nRaw samples: {path}", highlight=False)
    for title in broken:
        console.print(f"Not measured (see above): {title}", style="bold red", markup=False)
    return 0 if not broken and all(result.met for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
