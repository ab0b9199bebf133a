"""Measures (d): processes that start at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import BenchmarkError, Host, expect, fresh_host
from benchmarks.harness.result import Result


def ranks_at_once(effort: Effort, say: Say) -> list[Result]:
    """(d) Ranks that start cold at the same time: their extra CPU seconds relative to warm ranks, and the time until
    all run compiled code.
    """
    count = effort.ranks
    # The goals were set for four and eight processes. With more processes, each pays a smaller share of the compile.
    goal = 0.45 if count < 8 else 0.3
    beyond = Result("d", f"CPU s of {count} processes cold, beyond {count} warm: ours / torch.compile", "", goal)
    until = Result("d", f"time until all {count} run compiled: ours / one torch.compile, cold", "", 1.15)
    calls = Result("d", "the same, from the first call on", "", None)
    spec = effort.spec(pending="wait", steps=5)
    raw: dict[str, list[float]] = {}

    def take(title: str, host: Host, number: int, *, hook: bool) -> _Ranks:
        found = _at_once(host, spec, number, hook)
        for unit, value in (("CPU s", found.cpu_s), ("s until compiled", found.compiled_s)):
            raw.setdefault(f"{title} ({unit})", []).append(value)
        say(f"{title}: {found.cpu_s:.1f} CPU s, compiled after {found.compiled_s:.1f} s")
        return found

    for _ in range(max(1, effort.repeats // 2)):
        more = {}
        cold = {}
        for name, hook in (("ours", True), ("torch.compile", False)):
            with fresh_host() as host:
                cold[name] = take(f"{name}, cold", host, count, hook=hook)
                more[name] = cold[name].cpu_s - take(f"{name}, warm", host, count, hook=hook).cpu_s
        with fresh_host() as host:
            alone = take("one torch.compile, cold", host, 1, hook=False)
        beyond.samples.append(more["ours"] / more["torch.compile"])
        until.samples.append(cold["ours"].compiled_s / alone.compiled_s)
        calls.samples.append(cold["ours"].after_call_s / alone.after_call_s)
    beyond.raw = raw
    return [beyond, until, calls]


@dataclass(frozen=True)
class _Ranks:
    """Processes that started at once."""

    cpu_s: float  # CPU seconds of the processes and all their descendants
    compiled_s: float  # seconds from the first process's start to the end of the last process's first compiled step
    after_call_s: float  # the same, but from the first call of the first process


def _at_once(host: Host, spec: dict[str, Any], count: int, hook: bool) -> _Ranks:
    # Each process has one thread. More threads would compete for the cores, and their CPU seconds would mean nothing.
    command = host.command(spec, hook=hook, extra={"OMP_NUM_THREADS": "1"})
    found = host.tree([command] * count, daemon=None if hook else False)
    for client in found["clients"]:
        if client["result"] is None:
            raise BenchmarkError(f"one of {count} processes ended with {client['status']}:\n{client['errors']}")
        if hook:
            expect(client["result"]["reports"], "compiled", None)
    programs = [client["result"] for client in found["clients"]]
    ends = []
    for program in programs:
        # The first step runs compiled code on a hit, and with plain torch.compile, which reports no graphs.
        at_once = all(graph["state"] == "compiled" for graph in program["first"])
        step = program["steps"][0 if at_once else program["later"]]
        ends.append(step["at"] + step["s"])
    return _Ranks(
        found["cpu_s"],
        max(ends) - min(client["started"] for client in found["clients"]),
        max(ends) - min(program["marks"]["dynamo"] for program in programs),
    )
