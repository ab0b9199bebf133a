"""Measures (o): how much the compile of a whole graph slows the steps that run in pieces meanwhile."""

from __future__ import annotations

from typing import Any

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import BenchmarkError, Host, fresh_host
from benchmarks.harness.result import Result

IN_PIECES = {"PRECOMPILED_TIERS": "quick,default"}
STEPS = 12


def pieces_pace(effort: Effort, say: Say) -> list[Result]:
    """(o) Steps of a GPT-2 in pieces while the whole graph compiles, relative to steps in pieces without a compile."""
    result = Result("o", "gpt2 in pieces: step beside the compile of the whole graph / alone, median", "", 1.3)
    spec = {**effort.spec(), "model": "gpt2", "steps": STEPS}
    for _ in range(effort.repeats):
        with fresh_host() as host:
            host.start_daemon()
            beside_s = _step_s(host, spec)
            host.stop_daemon()  # so that nothing compiles the whole graph beside the second process
            alone_s = _step_s(host, spec, PRECOMPILED_AUTOSTART="0")
        result.samples.append(beside_s / alone_s)
        say(f"a step beside the compile {1000 * beside_s:.0f} ms, alone {1000 * alone_s:.0f} ms")
    return [result]


def _step_s(host: Host, spec: dict[str, Any], **variables: str) -> float:
    """Return the median time of a process's steps in pieces. Raises BenchmarkError if it had the whole graph."""
    found = host.run(spec, hook=True, extra={**IN_PIECES, **variables})
    if any(graph["state"] != "pending" for graph in found["reports"]):
        raise BenchmarkError(f"a graph did not stay in pieces: {found['reports']}")
    step_s: float = found["step_s"]
    return step_s
