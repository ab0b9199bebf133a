"""Computes the results (a), (b) and (h) (starts of GPT-2's training), and compares them with their goals."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import BenchmarkError
from benchmarks.harness.result import Result
from benchmarks.starts.contenders import CONTENDERS, REPEATED
from benchmarks.starts.report import publish
from benchmarks.starts.run import default_plans, run
from benchmarks.starts.sample import Group, Sample, ratios, values


def first_calls(effort: Effort, say: Say) -> list[Result]:
    """(a, b, h) Starts, cold and warm, and the swap: all contenders on GPT-2, and the main contenders on the other
    models.
    """
    samples = run(default_plans(effort.repeats, quick=effort.quick), effort.size, say)
    publish(samples, effort.quick, say)
    return goals(samples)


def goals(samples: Sequence[Sample]) -> list[Result]:
    """Return the results (a), (b) and (h) of GPT-2's training."""
    mine = [sample for sample in samples if sample.group == Group("gpt2", "training", "static")]
    good = {(sample.contender, sample.turn): sample for sample in mine if sample.outcome == "ok"}
    for sample in mine:
        if sample.contender in REPEATED and sample.outcome != "ok":
            raise BenchmarkError(f"{sample.contender}: {sample.outcome}: {sample.error}")
    cold = Result("a", "first call, nothing cached: ours / torch.compile", "", 0.1)
    added = Result("a", "first call, nothing cached: ours - (Dynamo + eager step)", "s", 0.1)
    compiled = Result("a", "first compiled result, nothing cached: ours / torch.compile", "", None)
    warm = Result("b", "first call, artifact present: ours / torch.compile warm", "", 0.7)
    beyond = Result("b", "first call, artifact present: ours - (Dynamo's tracing + compiled step)", "s", 0.15)
    eager = Result("h", "longest step around the swap / eager step", "", 1.5)
    steady = Result("h", "longest step around the swap / compiled step", "", None)
    beside = Result("h", "eager step while a worker compiles / eager step of a process alone", "", None)
    worst = Result("h", "the longest of them / eager step of a process alone", "", None)
    cpu = Result("a", "CPU s of a start, nothing cached: ours / torch.compile", "", None)
    cold.samples = ratios(mine, "first_s", "ours-cold", "plain-cold")
    compiled.samples = ratios(mine, "compiled_s", "ours-cold", "plain-cold")
    warm.samples = ratios(mine, "first_s", "ours-warm", "plain-warm")
    cpu.samples = ratios(mine, "cpu_s", "ours-cold", "plain-cold")
    for (name, turn), sample in good.items():
        if name == "ours-cold":
            if traced := good.get(("traced", turn)):
                added.samples.append(_of(sample.first_s) - _of(traced.first_s))
            if sample.swap:
                eager.samples.append(sample.swap["longest_s"] / sample.swap["eager_s"])
                steady.samples.append(sample.swap["longest_s"] / sample.swap["compiled_s"])
                if traced := good.get(("traced", turn)):
                    beside.samples.append(sample.swap["eager_s"] / _of(traced.step_s))
                    worst.samples.append(sample.swap["longest_eager_s"] / _of(traced.step_s))
        elif name == "ours-warm":
            beyond.samples.append(_of(sample.first_s) - _of(sample.tracing_s) - _of(sample.step_s))
    for result, names, attribute in (
        (cold, ("ours-cold", "plain-cold", "traced"), "first_s"),
        (compiled, ("ours-cold",), "compiled_s"),
        (warm, ("ours-warm", "plain-warm"), "first_s"),
        (beyond, ("ours-warm",), "tracing_s"),
        (cpu, ("ours-cold", "plain-cold"), "cpu_s"),
    ):
        for name in names:
            result.raw[f"{CONTENDERS[name].title}: {attribute.removesuffix('_s')} (s)"] = values(
                [sample for sample in mine if sample.contender == name], attribute
            )
    results = (cold, added, compiled, warm, beyond, eager, steady, beside, worst, cpu)
    return [result for result in results if result.samples]


def _of(value: float | None) -> float:
    if value is None:
        raise BenchmarkError("a figure is missing in a sample that counts")
    return value
