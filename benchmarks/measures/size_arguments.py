"""Measures (p): how much slower steps are if all sizes share the kernels, which then take sizes as arguments."""

from __future__ import annotations

import statistics

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import fresh_host
from benchmarks.harness.result import Result

MODELS = ("gpt2", "bert", "resnet", "unet")


def size_arguments(effort: Effort, say: Say) -> list[Result]:
    """(p) A training step with sizes as arguments of the kernels, relative to a step with sizes as literals."""
    results = []
    for model in MODELS:
        result = Result("p", f"{model}: step with kernels for all sizes / for one size", "", 1.01)
        for _ in range(effort.repeats):
            with fresh_host() as host:
                spec = effort.spec(model=model)
                found = host.run(spec, hook=False, program="measures.size_arguments_program")
            literals, arguments = (statistics.median(found[name]) for name in ("literals", "arguments"))
            result.samples.append(arguments / literals)
            say(f"{model}: {1000 * arguments:.0f} ms with kernels for all sizes, {1000 * literals:.0f} ms for one size")
        results.append(result)
    return results
