"""Measures how costs grow with artifacts in the store, with clients that submit at once, and with jobs in the queue.

`make bench-scale` (`python -m benchmarks.scale`). The benchmark uses a real daemon, worker and artifact. The store is
filled with copies of the artifact under other keys. The copies are hard links, so they need no space. Exits 1 if a
submit was lost.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks.harness.console import begin
from benchmarks.harness.effort import QUICK, Say
from benchmarks.harness.hosts import BenchmarkError, fresh_host
from benchmarks.harness.result import Table, machine, save, write_part
from benchmarks.scale.daemon import client_spec, measure_clients, measure_queue, submit
from benchmarks.scale.store import copies, measure_store
from precompiled.store.artifacts import Store

PAGE = "reference/scale.md"
# Columns that the page omits, because their values do not grow.
LEFT_OUT = frozenset({"`precompiled status` (s)", "`precompiled cache stats` (s)", "deepest seen"})


@dataclass(frozen=True)
class Scale:
    stores: tuple[int, ...]  # numbers of artifacts
    clients: tuple[tuple[int, int], ...]  # (processes, submits of all processes)
    queue: int
    repeats: int  # repetitions of each lookup or command


FULL_SCALE = Scale((1, 10, 100, 1000, 10_000), ((1, 1000), (8, 4000), (64, 10_000), (64, 10_000)), 1000, 200)
QUICK_SCALE = Scale((1, 100), ((1, 200), (4, 400)), 50, 20)


def measure(scale: Scale, say: Say) -> tuple[list[Table], int]:
    """Return the tables, and the number of lost submits."""
    with fresh_host() as host:
        host.start_daemon()
        host.run(QUICK.spec(task="inference", pending="wait"), hook=True)
        store = Store(host.settings.cache_dir)
        (artifact,) = store.all_artifacts()
        recorded = store.read_program(artifact)
        if recorded is None:
            raise BenchmarkError("the artifact has no program")
        (host.root / "blob").write_bytes(recorded)
        weight = sum(record.bytes for record in artifact.manifest.files.values())
        files = len(artifact.manifest.files)
        say(f"one artifact: {weight / 1e6:.2f} MB in {files} files; its graph: {len(recorded)} bytes")
        store_table = measure_store(host, artifact, scale.stores, scale.repeats, say)
        keys = copies(store, artifact, max(scale.stores[-1], scale.queue))
        host.stop_daemon()
        # 1,000 jobs of one user exceed the default limit.
        roomy = dataclasses.replace(host, flags={"max_queue_per_uid": scale.queue})
        daemon = psutil.Process(roomy.start_daemon())
        # Start a worker, so that the daemon is warm.
        submit(roomy, daemon, [client_spec(roomy, keys[:10], 10, 1)])
        clients_table, lost = measure_clients(roomy, daemon, keys, scale.clients, say)
        queue_table, more = measure_queue(roomy, keys, scale.queue, say)
    return [store_table, clients_table, queue_table], lost + more


def write_page(tables: Sequence[Table]) -> None:
    """Replace the figures in docs/reference/scale.md."""
    facts = machine()
    about = (
        f"On {facts['cores']} cores ({facts['cpu']}) with a load of {facts['load']:.1f} at the end, "
        f"Python {facts['python']}, torch {facts['torch']}, at {facts['commit']}:"
    )
    write_part("make bench-scale ARGS=--docs", [about, *(table.without(LEFT_OUT).text() for table in tables)], PAGE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer of everything: does it work")
    parser.add_argument("--docs", action="store_true", help="put the tables into docs/reference/scale.md")
    arguments = parser.parse_args()
    console, say = begin(180)
    started = time.monotonic()
    tables, lost = measure(QUICK_SCALE if arguments.quick else FULL_SCALE, say)
    print("\n" + "\n\n".join(table.text() for table in tables) + "\n")
    if arguments.docs:
        write_page(tables)
        console.print(f"Written to docs/{PAGE}", highlight=False)
    path = save({"tables": [dataclasses.asdict(table) for table in tables]}, arguments.quick, "scale")
    console.print(f"Raw figures: {path}; {time.monotonic() - started:.0f} s", highlight=False)
    if lost:
        console.print(f"{lost} submits were lost", style="bold red")
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
