"""Measures (o): how much the compile of a whole graph slows the steps that run in pieces meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import IN_PIECES, BenchmarkError, Host, fresh_host
from benchmarks.harness.result import Result

STEPS = 12


def pieces_pace(effort: Effort, say: Say) -> list[Result]:
    """(o) Steps of a GPT-2 in pieces: beside the compile of the whole graph, and with suspended workers.

    Three processes run one after the other. In the first two, steps run in pieces; the store has the pieces when the
    second one starts. The third process runs the whole graph.
    """
    beside = Result("o", "gpt2: step in pieces beside the compile of the whole graph / without a compile", "", 1.3)
    pieces = Result("o", "gpt2: step in pieces, without a compile / step of the whole graph", "", None)
    spec = effort.spec(steps=STEPS)
    for _ in range(effort.repeats):
        with fresh_host() as host:
            daemon = host.start_daemon()
            beside_s = _step_s(host, spec, "pending")
            with _suspended(daemon):
                alone_s = _step_s(host, spec, "pending")
            whole_s = _step_s(host, {**spec, "pending": "wait"}, "compiled")
        beside.samples.append(beside_s / alone_s)
        pieces.samples.append(alone_s / whole_s)
        say(
            f"in pieces, beside the compile {1000 * beside_s:.0f} ms; in pieces {1000 * alone_s:.0f} ms;"
            f" the whole graph {1000 * whole_s:.0f} ms"
        )
    return [beside, pieces]


@contextmanager
def _suspended(daemon: int) -> Iterator[None]:
    """Suspend the processes that a daemon has started, but not the daemon."""
    processes = psutil.Process(daemon).children(recursive=True)
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def _step_s(host: Host, spec: dict[str, Any], state: str) -> float:
    """Return the median time of a process's steps. Raises BenchmarkError unless all graphs end in ``state``."""
    found = host.run(spec, hook=True, extra=IN_PIECES)
    if any(graph["state"] != state or not graph["calls_compiled"] for graph in found["reports"]):
        raise BenchmarkError(f"a graph is not {state}, or never ran compiled: {found['reports']}")
    step_s: float = found["step_s"]
    return step_s
