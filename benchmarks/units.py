"""(k) What C++ compilers cost for GPT-2's kernels: in units, and one by one as plain torch.compile builds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.hosts import fresh_host, program, run_json
from benchmarks.result import Result

if TYPE_CHECKING:
    from benchmarks.measures import Effort, Say


def units(effort: Effort, say: Say) -> list[Result]:
    """(k) The C++ kernels of GPT-2's training: built in units, and one by one."""
    results = {
        "cpu_s": Result("k", "CPU s of the compilers of GPT-2's kernels: in units / one by one", "", None),
        "bytes": Result("k", "bytes of the native code: in units / one by one", "", None),
    }
    raw: dict[str, list[float]] = {}
    for _ in range(effort.repeats):
        with fresh_host() as host:
            found = run_json(program("units_program", effort.spec()), host.environment(hook=False))
        for name, result in results.items():
            result.samples.append(found["units"][name] / found["alone"][name])
        for way in ("alone", "units"):
            for name, value in found[way].items():
                raw.setdefault(f"{way}, {name}", []).append(value)
        seconds = f"{found['alone']['cpu_s']:.1f} CPU s one by one, {found['units']['cpu_s']:.1f} in units"
        say(f"{found['kernels']} kernels: {seconds}")
    results["cpu_s"].raw = raw
    return list(results.values())
