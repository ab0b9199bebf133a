"""Measures (c): steps after the swap, relative to torch.compile's."""

from __future__ import annotations

import statistics
import subprocess
from contextlib import ExitStack

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import Child, expect, fresh_host
from benchmarks.harness.result import Result


def steady_state(effort: Effort, say: Say) -> list[Result]:
    """(c) Steps after the swap: two processes take turns, a few steps each."""
    result = Result("c", "steady state after the swap: ours / torch.compile", "", 1.01)
    spec = effort.spec(pending="wait", serve=True)
    turn = 5
    with fresh_host() as host, ExitStack() as stack:
        host.start_daemon()
        processes = {}
        for name, hook in (("ours", True), ("torch.compile", False)):
            processes[name] = stack.enter_context(Child(host.command(spec, hook=hook), subprocess.DEVNULL))
            processes[name].wait_ready()
            say(f"{name}: compiled")
        host.stop_daemon()  # the daemon's idle worker must not use CPU
        raw: dict[str, list[float]] = {name: [] for name in processes}
        for number in range(-2, effort.steady_rounds):
            order = list(processes) if number % 2 else list(reversed(processes))
            for name in order:
                processes[name].tell(f"go {turn}")
                seconds = statistics.median(processes[name].answer())
                if number >= 0:  # turns with a negative number warm up
                    raw[name].append(seconds)
        say(f"{effort.steady_rounds} turns of {turn} steps each")
        expect(processes["ours"].finish()["reports"], "compiled", "swap")
        processes["torch.compile"].finish()
    result.raw = {f"{name}, step (s)": values for name, values in raw.items()}
    result.samples = [left / right for left, right in zip(raw["ours"], raw["torch.compile"], strict=True)]
    return [result]
