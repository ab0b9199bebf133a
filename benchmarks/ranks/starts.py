"""Compares, for a Llama on a mesh of 2 x 2, a later start's first step with plain torch.compile's warm start.

`python -m benchmarks.ranks.starts` (a part of `make bench-ranks`). Each start is a torchrun with four ranks. Starts
with precompiled and with plain torch alternate. Both kinds of starts have separate caches, which a first start fills.
The figure of a start is the first step of its slowest rank: forward, backward, optimizer, loads and compiles. Imports
and the construction of the model are excluded.

Exits 1 if the median ratio is above 0.3, if a graph was not served, if Dynamo traced a frame with precompiled, or if
the four ranks compiled more graphs than one rank has.
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import DEFAULTS, BenchmarkError, Host, fresh_host
from benchmarks.harness.served import expect_served
from benchmarks.harness.table_command import Report, run_table
from benchmarks.ranks import CASES
from benchmarks.ranks.table import Row, compiled, start

CASE, GOAL = "llama", 0.3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks.starts", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of warm starts")
    arguments = parser.parse_args()
    return run_table(arguments, lambda say: measure(arguments.repeats, say), width=120)


def measure(repeats: int, say: Say) -> Report:
    case = CASES[CASE]
    row = Row(case.name, case.kind, case.about, case.ranks)
    seconds: dict[str, list[float]] = {"ours": [], "plain": []}
    with fresh_host() as host:
        host.start_daemon()
        cold = {name: _first_step(host, row, name) for name in seconds}
        made = compiled(host)
        for turn in range(repeats):
            for name in sorted(seconds, reverse=bool(turn % 2)):
                seconds[name].append(_first_step(host, row, name, again=True))
                say(f"{name}: {seconds[name][-1]:.2f} s")
        again = compiled(host) - made
    ratios = [ours / plain for ours, plain in zip(seconds["ours"], seconds["plain"], strict=True)]
    median = statistics.median(ratios)
    rows = [
        [name, f"{cold[name]:.1f}", f"{statistics.median(found):.2f} ({min(found):.2f} .. {max(found):.2f})"]
        for name, found in seconds.items()
    ]
    return Report(
        median <= GOAL and made == row.of_one_rank and not again,
        f"A later first step, ours / plain: {median:.2f} ({min(ratios):.2f} .. {max(ratios):.2f}), goal {GOAL}. "
        f"Compiled for four ranks: {made} graphs, {row.of_one_rank} of them for one rank; in later starts: {again}.",
        [(["four ranks", "first step of the first start, s", "of a later one, s"], rows)],
    )


def _first_step(host: Host, row: Row, name: str, *, again: bool = False) -> float:
    """Return the slowest rank's first step, in seconds. ``again``: a later start, which must trace nothing."""
    hook = name == "ours"
    ranks = start(host, row, name, hook=hook, extra=DEFAULTS if hook else {})
    if hook:
        for found in ranks:
            expect_served(found["reports"])
            if again and found["traced"]:
                raise BenchmarkError(f"Dynamo traced {found['traced']} frames: {found['functions']}")
        row.of_one_rank = max(row.of_one_rank, *(len(found["reports"]) for found in ranks))
    return max(found["seconds"][0] for found in ranks)


if __name__ == "__main__":
    raise SystemExit(main())
