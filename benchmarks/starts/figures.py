"""Computes the figures of a sample from the output of its processes, and checks that the sample is valid."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.hosts import Host
from benchmarks.starts.contenders import Contender
from benchmarks.starts.sample import Sample
from precompiled.store.artifacts import Store

AROUND = 5  # number of steps after the swap that count towards the swap


def read(sample: Sample, contender: Contender, tree: dict[str, Any], client: dict[str, Any]) -> None:
    """Fill in the figures from the output of tree.py and program.py."""
    program = client["result"]
    marks, steps, later = program["marks"], program["steps"], program["later"]
    marks["started"] = client["started"]
    # The time of the first call includes the load of cache artifacts or of a package before the call, and compiles
    # during this load.
    begun = marks["dynamo"]
    sample.process_s = marks["first"] - client["started"]
    sample.first_s = marks["first"] - begun
    if contender.way not in ("eager", "traced"):
        ours = contender.hook and program["first"] and program["first"][0]["state"] == "pending"
        step = steps[later - 1]
        if not ours:
            sample.compiled_s = sample.first_s
        elif step.get("compiled"):
            sample.compiled_s = step["at"] + step["s"] - begun
    sample.step_s = program["step_s"]
    sample.tracing_s = _tracing(program["phases"])
    loads = sum(graph["load_s"] for graph in program["reports"] if graph["source"] == "swap")
    # A swap's load runs during steps. Subtract the steps' ``aside_cpu_s``, and add the load.
    sample.cpu_s = tree["cpu_s"] - program["aside_cpu_s"] + loads
    sample.memory = {**tree["memory"], "client": [program["peak_bytes"]]}
    sample.program = program


def read_compiles(sample: Sample, host: Host, tree: dict[str, Any]) -> None:
    """Set the times of the workers' compiles, from the artifacts' manifests and the processes' start times."""
    monotonic = time.monotonic() - time.time()
    for artifact in Store(host.settings.cache_dir).all_artifacts():
        ended = artifact.manifest.created + monotonic
        if ended > sample.program["marks"]["started"]:
            sample.compiles.append((ended - artifact.manifest.compile_s, ended))
    sample.compiles.sort()
    sample.worker_started = min(tree["started"].get("worker", []), default=None)


def _tracing(phases: dict[str, float]) -> float | None:
    """Return the seconds that Dynamo spent on frames, without the time in its backend."""
    if "_compile.compile_inner" not in phases:
        return None
    return phases["_compile.compile_inner"] - phases.get("OutputGraph.call_user_compiler", 0.0)


def swap(steps: Sequence[dict[str, float]], first: int, compiles: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the longest step around the swap, the median eager step before the swap, and the median compiled step
    after it.

    ``compiles``: (start, end) in monotonic seconds. ``first``: index of the first compiled step. "Around" begins with
    the step in which the artifact was published, because the compile slows down earlier steps. The process's first call
    includes Dynamo, so it is not an eager step.
    """
    eager = [step["s"] for step in steps[1:first]]
    compiled = [step["s"] for step in steps[first + 1 :]]
    until = steps[first]["at"] + steps[first]["s"]  # ignore later compiles: artifacts for other sizes
    published = max((ended for _, ended in compiles if ended < until), default=0.0)
    around = [step["s"] for step in steps[1 : first + AROUND + 1] if step["at"] + step["s"] >= published]
    if not eager or not compiled:
        return {}
    return {
        "longest_s": max(around),
        "longest_eager_s": max(eager),
        "eager_s": statistics.median(eager),
        "compiled_s": statistics.median(compiled),
        "eager_steps": len(eager),
    }


def unexpected(contender: Contender, program: dict[str, Any]) -> str:
    """Return why this sample is invalid for its contender, or "" if it is valid."""
    first, last = program["first"], program["reports"]
    if not contender.hook:
        return "precompiled was on" if last else ""
    if not first:
        return "no graph came to precompiled"
    for graph in first:
        if contender.in_pieces and (graph["state"], graph["source"]) == ("compiled", "swap"):
            continue  # a program that waited, and a graph without equal layers
        if graph["state"] != contender.state or graph["source"] != contender.source:
            return f"after the first call a graph is not {contender.state} by {contender.source}: {graph}"
    for graph in last:
        if contender.in_pieces:
            if not graph["calls_compiled"]:
                return f"in the end a graph has not run compiled: {graph}"
        elif graph["source"] != contender.finally_source:
            return f"in the end a graph does not run compiled by {contender.finally_source}: {graph}"
    return ""
