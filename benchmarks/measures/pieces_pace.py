"""Measures (o): how much the compile of a whole graph slows the steps that run in pieces meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import BenchmarkError, Host, fresh_host
from benchmarks.harness.result import Result

IN_PIECES = {"PRECOMPILED_TIERS": "quick,default"}
STEPS = 12


def pieces_pace(effort: Effort, say: Say) -> list[Result]:
    """(o) Steps of a GPT-2 in pieces: beside the compile of the whole graph, without a daemon, and of the whole graph.

    Three processes of one host run one after the other. The second one starts with the pieces of the first one.
    """
    beside = Result("o", "gpt2: step in pieces beside the compile of the whole graph / without a compile", "", 1.3)
    pieces = Result("o", "gpt2: step in pieces, without a compile / step of the whole graph", "", None)
    spec = effort.spec(steps=STEPS)
    for _ in range(effort.repeats):
        with fresh_host() as host:
            host.start_daemon()
            beside_s = _step_s(host, spec, IN_PIECES, "pending")
            host.stop_daemon()
            alone_s = _step_s(host, spec, {**IN_PIECES, "PRECOMPILED_AUTOSTART": "0"}, "pending")
            host.start_daemon()
            whole_s = _step_s(host, {**spec, "pending": "wait"}, IN_PIECES, "compiled")
        beside.samples.append(beside_s / alone_s)
        pieces.samples.append(alone_s / whole_s)
        say(
            f"in pieces, beside the compile {1000 * beside_s:.0f} ms; in pieces {1000 * alone_s:.0f} ms;"
            f" the whole graph {1000 * whole_s:.0f} ms"
        )
    return [beside, pieces]


def _step_s(host: Host, spec: dict[str, Any], extra: Mapping[str, str], state: str) -> float:
    """Return the median time of a process's steps. Raises BenchmarkError unless its graphs are then in ``state``."""
    found = host.run(spec, hook=True, extra=extra)
    if any(graph["state"] != state or not graph["calls_compiled"] for graph in found["reports"]):
        raise BenchmarkError(f"a graph is not {state}, or never ran compiled: {found['reports']}")
    step_s: float = found["step_s"]
    return step_s
