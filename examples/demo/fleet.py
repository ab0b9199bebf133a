"""`make demo-fleet`: three hosts share a bucket on this machine; each graph is compiled once, and no step waits.

Four processes train the model of `make demo`, each through observed.py. A host has its own store, daemon and helper.
The bucket is moto's S3 server, behind a proxy that delays each request by 50 ms.

    A, B          start at once on two empty hosts with an empty bucket: one compiles, both swap
    C             starts on a third empty host: compiled from its first step, without a trace or a compile
    C, again      the same host with its full store: the reference for C's first step
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).resolve().parents[2]))  # this checkout, for benchmarks.fleet.bucket

from rich.console import Console
from rich.table import Table
from run import Run
from show import TOLERANCE, DemoError, Show, main

from benchmarks.fleet import bucket
from precompiled.remote import helper_link
from precompiled.store.artifacts import Store

LATENCY_S = 0.05
MAX_OVER_HIT_S = 1.0


class Fleet(Show):
    title = "precompiled: a fleet"
    about = (
        "This machine simulates three hosts and a bucket that replies after 50 ms. Hosts A and B start at once, and C\n"
        "later, all with empty stores. Then C starts again. This takes two to four minutes on two cores.\n"
    )
    try_it = "For your own hosts: [bold]PRECOMPILED_REMOTE=s3://bucket/prefix[/] (docs/guides/fleet.md)."

    def __init__(self, console: Console, directory: Path) -> None:
        super().__init__(console, directory)
        self.runs = [
            Run("A", "all empty", hook=True),
            Run("B", "at the same time", hook=True),
            Run("C", "an empty host", hook=True),
            Run("C, again", "its own store", hook=True),
        ]
        self._server = ExitStack()
        self._bucket: dict[str, str] = {}

    def variables(self, run: Run) -> dict[str, str]:
        host = self.host(run)
        return {
            **self.plain_variables(),
            **self._bucket,
            "PRECOMPILED_CACHE_DIR": str(host / "store"),
            "PRECOMPILED_RUNTIME_DIR": str(host / "run"),
            "XDG_CONFIG_HOME": str(host / "config"),
            "TORCHINDUCTOR_CACHE_DIR": str(host / "inductor"),
            "PRECOMPILED_REMOTE": f"s3://{bucket.NAME}/demo",
            # The table shows one graph. A graph's pieces are shared between hosts like graphs.
            "PRECOMPILED_TIERS": "default",
        }

    def host(self, run: Run) -> Path:
        return self.directory / run.label[0]

    def run_all(self) -> None:
        port = self._server.enter_context(bucket.served())
        self._bucket = bucket.variables(self._server.enter_context(bucket.delayed(port, LATENCY_S)))
        a, b, c, again = self.runs
        made = self.precompiled(a, "remote", "keys", "new")
        if made.returncode != 0:
            raise DemoError(made.stderr)
        for run in (b, c):  # one signing key for all hosts
            shutil.copytree(self.host(a) / "config", self.host(run) / "config")
        with self.progress():
            self._at_once(a, b)
            for run in (a, b):
                helper_link.ask(self.host(run) / "store", {"do": "flush"})
            for run in (c, again):
                self.train(run, 0)
        self.stats, self.workers = {}, {}
        for run in (a, b, c):
            self.stats[run.label] = json.loads(self.precompiled(run, "cache", "stats", "--json").stdout)
            status = json.loads(self.precompiled(run, "status", "--json").stdout)
            self.workers[run.label] = {worker["pid"] for worker in status["workers"]}

    def _at_once(self, *runs: Run) -> None:
        failed: list[DemoError] = []

        def train(run: Run) -> None:
            try:
                self.train(run, 0)
            except DemoError as error:
                failed.append(error)

        threads = [threading.Thread(target=train, args=(run,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def close(self) -> None:
        self.end(self.runs)
        for run in self.runs[:3]:
            if (self.host(run) / "run").exists():
                self.stop(run)
            helper_link.ask(self.host(run) / "store", {"do": "stop"})
        self._server.close()

    # ------------------------------------------------------------------ what it shows

    def shown(self) -> Iterator[Any]:
        yield self._starts()
        yield ""
        yield self._compiles()

    def _starts(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("", no_wrap=True)
        for run in self.runs:
            table.add_column(f"{run.label}\n[not bold bright_black]{run.title}[/]", justify="right")
        rows = [
            ("first training step took", [f"{run.steps[0]['seconds']:.1f} s" for run in self.runs]),
            ("runs compiled after", [f"{run.seconds_until(run.first_compiled()):.1f} s" for run in self.runs]),
            ("steps until then, eager", [str(run.first_compiled()) for run in self.runs]),
            ("frames that Dynamo traced", [str(run.end["frames"]) for run in self.runs]),
            ("compiled by this process", [str(run.end["compiles"]) for run in self.runs]),
        ]
        for label, values in rows:
            table.add_row(label, *values)
        return table

    def _compiles(self) -> Table:
        """Return a table of the hosts that compiled each graph, by the worker's pid in the artifact."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("graph", "compiled in", "on A", "on B", "on C"):
            table.add_column(column, no_wrap=True, justify="left" if column == "graph" else "right")
        for key, name in sorted({(graph["key"], graph["name"]) for run in self.runs for graph in run.end["graphs"]}):
            cells, seconds = [], 0.0
            for run in self.runs[:3]:
                found = Store(self.host(run) / "store").lookup(key)
                if not found:
                    cells.append("-")
                    continue
                seconds = found[0].manifest.compile_s
                here = int(found[0].manifest.compiled_by["pid"]) in self.workers[run.label]
                cells.append("compiled" if here else "from the bucket")
            table.add_row(f"{name} {key[:8]}", f"{seconds:.0f} s", *cells)
        return table

    def claims(self) -> Iterator[tuple[bool, str]]:
        a, b, c, again = self.runs
        graphs = {graph["key"] for run in self.runs for graph in run.end["graphs"]}
        # A host that never started a daemon has no counts.
        compiled = {label: stats.get("compiled", 0) for label, stats in self.stats.items()}
        yield (
            sum(compiled.values()) == len(graphs),
            f"the fleet compiled {len(graphs)} graph{'s' * (len(graphs) != 1)}, each once: "
            + ", ".join(f"{label} {count}" for label, count in compiled.items()),
        )
        yield (
            all(graph["source"] == "swap" for run in (a, b) for graph in run.end["graphs"])
            and all(run.steps[0]["code"] == "eager" and run.end["compiles"] == 0 for run in (a, b)),
            f"A and B trained eager meanwhile, and swapped after {a.seconds_until(a.first_compiled()):.0f} s and "
            f"{b.seconds_until(b.first_compiled()):.0f} s",
        )
        yield (
            all(step["code"] == "compiled" for step in c.steps)
            and c.end["frames"] == c.end["compiles"] == 0
            and all(graph["source"] == "package" for graph in c.end["graphs"])
            and not c.end["started"],
            "C, on an empty host, ran compiled from its first step, and traced, compiled and started nothing",
        )
        over = c.steps[0]["seconds"] - again.steps[0]["seconds"]
        yield (
            over <= MAX_OVER_HIT_S,
            f"C's first step took {c.steps[0]['seconds']:.1f} s, and {again.steps[0]['seconds']:.1f} s with a full "
            f"store ({over:+.1f} s; {MAX_OVER_HIT_S:g} s at most), with {LATENCY_S * 1000:.0f} ms per request",
        )
        worst = max(self.worst_difference(run) for run in (a, b, c))
        yield worst <= TOLERANCE, f"all trained the same: their losses differ by {worst:.1e} at most"


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main(Fleet))
