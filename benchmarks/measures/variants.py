"""Measures (p) and (q): steps with other kernels, relative to steps with the kernels that Inductor makes by default."""

from __future__ import annotations

import statistics

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import fresh_host
from benchmarks.harness.result import Result

MODELS = ("gpt2", "bert", "resnet", "unet")


def size_arguments(effort: Effort, say: Say) -> list[Result]:
    """(p) A training step with kernels for all sizes, which take sizes as arguments / with kernels for one size."""
    return _steps(effort, say, "p", "arguments", "step with kernels for all sizes / for one size", MODELS)


def autotuned(effort: Effort, say: Say) -> list[Result]:
    """(q) A training step with the mode max-autotune / with the default mode."""
    return _steps(effort, say, "q", "autotuned", "step with max-autotune / by default", MODELS[:2])


def _steps(effort: Effort, say: Say, letter: str, variant: str, what: str, models: tuple[str, ...]) -> list[Result]:
    results = []
    for model in models:
        result = Result(letter, f"{model}: {what}", "", 1.01)
        for _ in range(effort.repeats):
            with fresh_host() as host:
                spec = {**effort.spec(model=model), "variants": ["literals", variant]}
                found = host.run(spec, hook=False, program="measures.variants_program")
            default, other = (statistics.median(found[name]) for name in ("literals", variant))
            result.samples.append(other / default)
            first = {name: f"{seconds:.0f} s" for name, seconds in found["first"].items()}
            say(f"{model}: {1000 * other:.0f} ms ({variant}), {1000 * default:.0f} ms by default; first steps: {first}")
        results.append(result)
    return results
