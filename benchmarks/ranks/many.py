"""Measures the CPU seconds that 64 ranks spend on compiling, relative to one rank.

`python -m benchmarks.ranks.many` (a part of `make bench-ranks`). Each rank is a process with torch's fake process group
of 64 ranks, which sends nothing. A Llama is tensor parallel over eight ranks and fully_shard over eight such groups.
Ranks run in parallel, one per core. The figure includes the daemon, workers and compilers, but not the ranks.

Exits 1 if 64 ranks take more than 1.1 times the CPU seconds of one rank, or if a graph was not served.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.harness.console import begin
from benchmarks.harness.hosts import BenchmarkError, fresh_host
from benchmarks.harness.served import expect_served

WORLD, GOAL = 64, 1.1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks.many", description=__doc__)
    parser.add_argument("--ranks", type=int, default=WORLD, help="how many of the 64 start")
    parser.add_argument("--turns", metavar="RANKS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.turns:
        return _in_turns(*json.loads(arguments.turns))
    console, say = begin(120)
    taken = {}
    for number in (1, arguments.ranks):
        seconds, graphs, keys = _compiling(number)
        taken[number] = seconds
        say(f"{number} of {WORLD} ranks: {graphs} graphs with {keys} keys, {seconds:.1f} CPU s of compiling")
    ratio = taken[arguments.ranks] / taken[1]
    console.print(f"CPU s of compiling, {arguments.ranks} ranks / one: {ratio:.2f} (goal: {GOAL})", highlight=False)
    return 0 if ratio <= GOAL else 1


def _compiling(number: int) -> tuple[float, int, int]:
    """Return CPU seconds, and the number of graphs and of keys. Raises BenchmarkError if a graph was not served."""
    with fresh_host() as host:
        # Spread the ranks as far apart as possible.
        specs = [{"rank": rank * WORLD // number, "world": WORLD} for rank in range(number)]
        extra = {"OMP_NUM_THREADS": "1", "PRECOMPILED_MODE": "wait"}
        command = host.command({}, hook=True, extra=extra, program="ranks.fake")
        launcher = [sys.executable, "-m", "benchmarks.ranks.many", "--turns", json.dumps([command, specs])]
        found = host.tree([{**command, "argv": launcher, "env": host.variables(hook=False)}], daemon=None)
    (client,) = found["clients"]
    if client["result"] is None:
        raise BenchmarkError(f"the ranks ended with {client['status']}:\n{client['errors']}")
    reports = [report for rank in client["result"] for report in rank]
    expect_served(reports)
    return found["cpu_s"] - client["cpu_s"], len(reports), len({report["key"] for report in reports})


def _in_turns(command: dict[str, Any], specs: Sequence[dict[str, int]]) -> int:
    """Run a rank for each spec, in parallel, one per core. Print the ranks' outputs as one JSON array."""

    def run(spec: dict[str, int]) -> Any:
        argv = [*command["argv"][:-1], json.dumps(spec)]
        done = subprocess.run(
            argv, env=command["env"], cwd=command["cwd"], stdout=subprocess.PIPE, text=True, check=True
        )
        return json.loads(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        print(json.dumps(list(pool.map(run, specs))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
