"""Measures (g): the time of a lookup, relative to the time that torch's own cache takes to compute a key."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import BenchmarkError, fresh_host
from benchmarks.harness.result import Result

PLACEHOLDERS = 5000
REPEATS = 5  # lookups in one process, after the first one
SIDES = ("ours", "torch's key")


def lookup(effort: Effort, say: Say) -> list[Result]:
    """(g) Capture, key and store lookup, relative to torch's key, for GPT-2's training graph and a graph with 5,000
    inputs.
    """
    return [
        *_compare("GPT-2's training graph", {"model": "gpt2", "size": effort.size}, 0.5, effort, say),
        *_compare(f"{PLACEHOLDERS:,} inputs", {"placeholders": PLACEHOLDERS}, 3.0, effort, say),
    ]


def _compare(title: str, graph: dict[str, Any], goal: float, effort: Effort, say: Say) -> list[Result]:
    """Return two ratios of precompiled's time to torch's: for a process's first lookup, and for later lookups."""
    results = {
        "first": Result("g", f"lookup of {title}, first in a process: ours / torch's key", "", goal),
        "again": Result("g", f"lookup of {title}, again in it: ours / torch's key", "", goal),
    }
    raw: dict[str, dict[str, list[float]]] = {"first": {}, "again": {}}
    for number in range(effort.repeats):
        for name in SIDES if number % 2 else reversed(SIDES):
            seconds = _sample(name, graph)
            raw["first"].setdefault(name, []).append(seconds[0])
            raw["again"].setdefault(name, []).append(statistics.median(seconds[1:]))
        say(
            f"{title}: "
            + ", ".join(f"{name} {raw['first'][name][-1]:.3f} s, then {raw['again'][name][-1]:.3f} s" for name in SIDES)
        )
    for when, result in results.items():
        result.raw = {f"{title}: {name}, {when} (s)": raw[when][name] for name in SIDES}
        result.samples = [left / right for left, right in zip(*(raw[when][name] for name in SIDES), strict=True)]
    return list(results.values())


def _sample(side: str, graph: dict[str, Any]) -> list[float]:
    """Return the seconds of one fresh process: its first lookup, then the repeated ones."""
    with fresh_host() as host:
        spec = {**graph, "side": side, "repeats": REPEATS}
        extra = {"PRECOMPILED_MODE": "lookup"}
        found = host.run(spec, hook=True, extra=extra, program="measures.lookup_program")
    if found["placeholders"] < graph.get("placeholders", 1) or len(found["seconds"]) != 1 + REPEATS:
        raise BenchmarkError(f"not the graph that was to be measured: {found}")
    seconds: list[float] = found["seconds"]
    return seconds
