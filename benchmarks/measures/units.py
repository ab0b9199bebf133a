"""Measures (k): what the C++ compilers cost if a model's kernels are built in units, and if they are built one by
one.
"""

from __future__ import annotations

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import fresh_host
from benchmarks.harness.result import Result


def units(effort: Effort, say: Say) -> list[Result]:
    """(k) The C++ kernels of models in training: built in units, and one by one."""
    results: list[Result] = []
    for model in ("gpt2", "resnet", "unet"):
        cost = Result("k", f"CPU s of the compilers of {model}'s kernels: in units / one by one", "", None)
        size = Result("k", f"bytes of {model}'s native code: in units / one by one", "", None)
        other = Result("k", f"{model}'s kernels whose instructions differ", "", None)
        wrong = Result("k", f"{model}'s kernels whose values differ", "", 0.0)
        pace = Result("k", f"time of a call of such a kernel of {model}: in units / one by one", "", 1.02)
        for _ in range(effort.repeats):
            with fresh_host() as host:
                found = host.run(effort.spec() | {"model": model}, hook=False, program="measures.units_program")
            alone, together = found["alone"], found["units"]
            cost.samples.append(together["cpu_s"] / alone["cpu_s"])
            size.samples.append(together["bytes"] / alone["bytes"])
            other.samples.append(found["kernels"] - found["same"])
            wrong.samples.append(found["wrong"])
            pace.samples += found["paces"]
            for name in ("cpu_s", "s", "files"):
                cost.raw.setdefault(f"{model}, one by one, {name}", []).append(alone[name])
                cost.raw.setdefault(f"{model}, in units, {name}", []).append(together[name])
            seconds = f"{alone['cpu_s']:.1f} CPU s one by one, {together['cpu_s']:.1f} in units"
            files = f"{found['kernels']} kernels, {found['same']} the same, in {together['files']} files"
            say(f"{model}: {files}: {seconds}")
        results += [cost, size, other, wrong, *([pace] if pace.samples else [])]
    return results
