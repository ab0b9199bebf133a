"""(g) How long a large graph waits for its lookup, beside the key that torch's own cache would make of it."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.hosts import BenchmarkError, fresh_host, run_json
from benchmarks.result import Result

if TYPE_CHECKING:
    from benchmarks.measures import Effort, Say

PROGRAM = Path(__file__).parent / "lookup_program.py"
PLACEHOLDERS = 5000
REPEATS = 5  # in one process, after the first


def lookup(effort: Effort, say: Say) -> list[Result]:
    """(g) Capture, key and store lookup of a graph with 5,000 inputs, beside torch's own autograd_cache_key."""
    first = Result("g", f"lookup of {PLACEHOLDERS:,} inputs, first in a process: ours / torch's key", "", 3.0)
    again = Result("g", f"lookup of {PLACEHOLDERS:,} inputs, again in it: ours / torch's key", "", 3.0)
    kinds = {"ours": "ours", "torch's key": "torch"}
    raw: dict[str, dict[str, list[float]]] = {"first": {}, "again": {}}
    for number in range(effort.repeats):
        for name in list(kinds) if number % 2 else list(reversed(kinds)):
            seconds = _sample(kinds[name])
            raw["first"].setdefault(name, []).append(seconds[0])
            raw["again"].setdefault(name, []).append(statistics.median(seconds[1:]))
        say(", ".join(f"{name} {raw['first'][name][-1]:.2f} s, then {raw['again'][name][-1]:.2f} s" for name in kinds))
    for result, when in ((first, "first"), (again, "again")):
        result.raw = {f"{name}, {when} (s)": raw[when][name] for name in kinds}
        result.samples = [left / right for left, right in zip(*(raw[when][name] for name in kinds), strict=True)]
    return [first, again]


def _sample(side: str) -> list[float]:
    """The seconds of one fresh process: its first lookup, and the repeated ones."""
    spec = json.dumps({"placeholders": PLACEHOLDERS, "side": side, "repeats": REPEATS})
    with fresh_host() as host:
        environment = host.environment(hook=True, extra={"PRECOMPILED_MODE": "lookup"})
        found = run_json([sys.executable, str(PROGRAM), spec], environment)
    if found["placeholders"] != PLACEHOLDERS or len(found["seconds"]) != 1 + REPEATS:
        raise BenchmarkError(f"not the graph that was to be measured: {found}")
    seconds: list[float] = found["seconds"]
    return seconds
