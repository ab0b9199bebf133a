"""(c) Steps after the swap, beside torch.compile's."""

from __future__ import annotations

import json
import statistics
import subprocess
from contextlib import ExitStack
from typing import Any

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import LIMIT_S, BenchmarkError, Host, expect, fresh_host
from benchmarks.harness.result import Result


def steady_state(effort: Effort, say: Say) -> list[Result]:
    """(c) Steps after the swap: two processes that live side by side take turns, a few steps each."""
    result = Result("c", "steady state after the swap: ours / torch.compile", "", 1.01)
    spec = effort.spec(pending="wait", serve=True)
    turn = 5
    with fresh_host() as host, ExitStack() as stack:
        host.start_daemon()
        processes = {}
        for name, hook in (("ours", True), ("torch.compile", False)):
            process = stack.enter_context(_Stepping(host, spec, hook))
            process.wait_ready()
            say(f"{name}: compiled")
            processes[name] = process
        host.stop_daemon()  # its idle worker has no part in this
        raw: dict[str, list[float]] = {name: [] for name in processes}
        for number in range(-2, effort.steady_rounds):
            order = list(processes) if number % 2 else list(reversed(processes))
            medians = {name: statistics.median(processes[name].go(turn)) for name in order}
            if number >= 0:  # the first turns warm up
                for name, seconds in medians.items():
                    raw[name].append(seconds)
        say(f"{effort.steady_rounds} turns of {turn} steps each")
        expect(processes["ours"].finish()["reports"], "compiled", "swap")
        processes["torch.compile"].finish()
    result.raw = {f"{name}, step (s)": values for name, values in raw.items()}
    result.samples = [left / right for left, right in zip(raw["ours"], raw["torch.compile"], strict=True)]
    return [result]


class _Stepping:
    """A process that steps when it is told to."""

    def __init__(self, host: Host, spec: dict[str, Any], hook: bool) -> None:
        command = host.command(spec, hook=hook)
        self.process = subprocess.Popen(
            command["argv"], env=command["env"], cwd=command["cwd"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def __enter__(self) -> _Stepping:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise BenchmarkError(f"the stepping process ended: {self.process.wait()}")
        return line

    def wait_ready(self) -> None:
        while self._line().strip() != "ready":
            pass

    def go(self, count: int) -> list[float]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"go {count}\n")
        self.process.stdin.flush()
        found: list[float] = json.loads(self._line())
        return found

    def finish(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.close()
        found: dict[str, Any] = json.loads(self._line())
        self.process.wait(LIMIT_S)
        return found
