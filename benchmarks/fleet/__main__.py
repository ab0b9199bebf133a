"""Simulates 1,000 hosts that start cold at the same time and need 30 graphs, over a shared directory and S3. Then
repeats this with 10 % of the hosts killed.

`make bench-fleet` (`python -m benchmarks.fleet`). S3 is moto's server on this machine, a Python process that takes
most of the time. Exits 1 if a surviving host lacks a graph at the end, or if more than 0.1 % of the wanted graphs were
compiled twice.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.fleet import bucket
from benchmarks.fleet.simulate import HEADERS, TITLE, Outcome, Plan, row, run
from benchmarks.harness.console import begin, chosen
from benchmarks.harness.result import Table, describe_machine, write_part
from precompiled.remote import keys, trusting

MAX_DUPLICATES = 0.001
PLACES = ("shared directory", "S3")
KILLED = (0.0, 0.1)


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory for 1,000 stores, in memory if /dev/shm is writable."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="pc-fleet-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def remote(place: str) -> Iterator[str]:
    """Start a remote and yield its URL."""
    if place == "S3":
        with bucket.served() as port:
            os.environ.update(bucket.variables(port))
            yield f"s3://{bucket.NAME}"
    else:
        with scratch() as root:
            yield f"file://{root}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--graphs", type=int, default=30)
    parser.add_argument("--only", action="append", help=f"one of {', '.join(PLACES)}")
    parser.add_argument("--killed", type=float, action="append", help=f"by default {' and '.join(map(str, KILLED))}")
    parser.add_argument("--docs", action="store_true", help="put the table into docs/guides/fleet.md")
    arguments = parser.parse_args()
    console, say = begin(180)
    outcomes: list[tuple[str, Outcome]] = []
    for place in chosen(parser, arguments.only, PLACES):
        with remote(place) as url:
            for killed in arguments.killed or KILLED:
                say(f"{place}, {killed:.0%} of the hosts killed")
                with scratch() as root:
                    os.environ["XDG_CONFIG_HOME"] = str(root / "config")
                    keys.new()  # the one key pair with which all hosts sign
                    plan = Plan(arguments.hosts, arguments.graphs, killed, seed=time.time_ns())
                    found = run(plan, root / "stores", f"{url}/{killed}", trusting.trust(False), say)
                outcomes.append((place, found))
                say(" | ".join(row(place, found)))
    table = Table(TITLE, HEADERS, [row(place, outcome) for place, outcome in outcomes])
    print("\n" + table.text() + "\n")
    if arguments.docs:
        shown = table.without(("hosts", "graphs", "lost"))  # the page names hosts and graphs; lost graphs are an error
        write_part("`make bench-fleet ARGS=--docs`", [describe_machine(), shown.text()], "guides/fleet.md")
    bad = [place for place, outcome in outcomes if outcome.lost or outcome.duplicates > MAX_DUPLICATES * outcome.wanted]
    for place in bad:
        console.print(f"{place}: graphs were lost, or too many compiled twice", style="bold red")
    return int(bool(bad))


if __name__ == "__main__":
    raise SystemExit(main())
