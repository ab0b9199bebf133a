"""Runs random programs with swaps at random points.

Each program runs under plain torch.compile, eager, and precompiled with several schedules of swaps. The run with
precompiled must equal the run with plain torch.compile in values, kinds of gradients, types of exceptions and state.
Prints a line for each difference, with the seed that reproduces it, and a table at the end.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import sys
import time
from typing import Any

from .check import check_task, quiet


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=400, help="models (default: %(default)s)")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="the first one's (default: %(default)s; from 2000000 on, graphs have equal layers and run in pieces)",
    )
    parser.add_argument("--schedules", type=int, default=5, help="of swaps, for each model (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    counted: collections.Counter[str] = collections.Counter()
    differences: list[str] = []
    tasks: Any = ((seed, options.schedules) for seed in range(options.seed, options.seed + options.count))
    with multiprocessing.get_context("spawn").Pool(options.jobs, quiet, maxtasksperchild=200) as pool:
        for number, (found, counts) in enumerate(pool.imap_unordered(check_task, tasks), 1):
            counted += counts
            for line in found:
                differences.append(line)
                print(line, flush=True)
            if number % 100 == 0:
                print(f"{number} of {options.count} models, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{time.monotonic() - started:.0f} s, seeds {options.seed} to {options.seed + options.count - 1}")
    for name, amount in counted.items():
        print(f"{amount:8d} {name}")
    print(f"{len(differences):8d} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
