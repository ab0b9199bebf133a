"""Measures (j): how much a compile slows the eager steps that run at the same time."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import BenchmarkError, fresh_host
from benchmarks.harness.result import Result

MODELS = ("demo", "gpt2", "resnet", "unet")
ALONE_STEPS = 12


@dataclass(frozen=True)
class Pace:
    """The steps of a process until its swap, relative to the steps of a process without a compile."""

    alone_s: float  # median step of a process without a compile
    median: float  # eager step / ``alone_s``
    worst: float
    done: float  # eager steps until the swap / steps of the process without a compile in the same time
    swapped_s: float  # seconds from the start of the first call to the end of the first compiled step

    def line(self) -> str:
        return (
            f"alone {1000 * self.alone_s:.0f} ms; beside a compile {self.median:.2f} of it, at worst {self.worst:.2f}; "
            f"{self.done:.2f} of the steps; compiled after {self.swapped_s:.1f} s"
        )


def take(spec: Mapping[str, Any]) -> Pace:
    """Measure a process that runs Dynamo's graphs eagerly, then a process whose graphs are compiled meanwhile."""
    with fresh_host() as host:
        alone_s = host.run({**spec, "way": "traced", "steps": ALONE_STEPS}, hook=False)["step_s"]
        host.start_daemon()
        steps = host.run(spec, hook=True)["steps"]
    # The first step includes Dynamo, the last one is compiled, and all others are eager.
    eager = [step["s"] for step in steps[1:-1]]
    if not eager or not steps[-1].get("compiled"):
        raise BenchmarkError(f"of {len(steps)} steps none is eager, or the last is not compiled")
    spent = steps[-1]["at"] - steps[1]["at"]
    return Pace(
        alone_s,
        statistics.median(eager) / alone_s,
        max(eager) / alone_s,
        len(eager) * alone_s / spent,
        steps[-1]["at"] + steps[-1]["s"] - steps[0]["at"],
    )


def pace(effort: Effort, say: Say) -> list[Result]:
    """(j) Eager steps during the compile of their graphs, relative to eager steps of a process that runs alone."""
    # On one core, the program and its compile share the core equally. So only the median has a goal.
    shared = len(os.sched_getaffinity(0)) == 1
    results = []
    for model in MODELS:
        median = Result("j", f"{model}: eager step beside a compile / alone, median", "", 2.5 if shared else 1.5)
        worst = Result("j", f"{model}: the same, worst", "", None if shared else 3.0)
        done = Result(
            "j", f"{model}: steps alone in the time until the swap / steps done", "", None if shared else 1 / 0.6
        )
        swapped = Result("j", f"{model}: first compiled result, nothing cached", "s", None)
        for _ in range(effort.repeats):
            found = take({**effort.spec(), "model": model, "optimizer": model == "demo"})
            say(f"{model}: {found.line()}")
            for result, value in (
                (median, found.median),
                (worst, found.worst),
                (done, 1 / found.done),
                (swapped, found.swapped_s),
            ):
                result.samples.append(value)
        results += [median, worst, done, swapped]
    return results
