"""Measures (o): how much the compile of a whole graph slows the steps that run in pieces meanwhile."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import BenchmarkError, Host, fresh_host
from benchmarks.harness.result import Result

IN_PIECES = {"PRECOMPILED_TIERS": "quick,default"}
STEPS = 12


def pieces_pace(effort: Effort, say: Say) -> list[Result]:
    """(o) Steps of a GPT-2 in pieces while the whole graph compiles, relative to later steps of the whole graph."""
    result = Result(
        "o", "gpt2: step in pieces beside the compile of the whole graph / step of the whole graph", "", 1.3
    )
    spec = effort.spec(steps=STEPS)
    for _ in range(effort.repeats):
        with fresh_host() as host:
            host.start_daemon()
            beside_s = _step_s(host, spec, "pending")
            alone_s = _step_s(host, {**spec, "pending": "wait"}, "compiled")
        result.samples.append(beside_s / alone_s)
        say(f"in pieces, beside the compile {1000 * beside_s:.0f} ms; the whole graph, alone {1000 * alone_s:.0f} ms")
    return [result]


def _step_s(host: Host, spec: dict[str, Any], state: str) -> float:
    """Return the median time of a process's steps. Raises BenchmarkError unless its graphs are then in ``state``."""
    found = host.run(spec, hook=True, extra=IN_PIECES)
    if any(graph["state"] != state for graph in found["reports"]):
        raise BenchmarkError(f"a graph is not {state}: {found['reports']}")
    step_s: float = found["step_s"]
    return step_s
