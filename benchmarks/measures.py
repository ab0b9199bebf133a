"""The measures, one function each: samples in fresh processes, what is compared interleaved."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
import venv
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import precompiled
from benchmarks import starts
from benchmarks.effort import QUICK, Effort, Say
from benchmarks.hosts import LIMIT_S, BenchmarkError, Host, fresh_host
from benchmarks.load import load
from benchmarks.lookup import lookup
from benchmarks.pace import pace
from benchmarks.result import Result
from benchmarks.units import units
from precompiled.cli import pth
from precompiled.core import python_path


def first_calls(effort: Effort, say: Say) -> list[Result]:
    """(a, b, h) Starts, cold and warm, and the swap: all contenders on GPT-2, the main ones on the other models."""
    samples = starts.run(starts.default_plans(effort.repeats, quick=effort.quick), effort.size, say)
    starts.publish(samples, effort.quick, say)
    return starts.goals(samples)


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
        _expect(processes["ours"].finish()["reports"], "compiled", "swap")
        processes["torch.compile"].finish()
    result.raw = {f"{name}, step (s)": values for name, values in raw.items()}
    result.samples = [left / right for left, right in zip(raw["ours"], raw["torch.compile"], strict=True)]
    return [result]


def ranks_at_once(effort: Effort, say: Say) -> list[Result]:
    """(d) Ranks that start cold at once: their CPU seconds beyond warm ones, and when all of them run compiled."""
    count = effort.ranks
    # A goal that was set for four and eight: between them one compile is shared by more.
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
    """Processes that were started at once."""

    cpu_s: float  # of everything that came of them
    compiled_s: float  # from the start of the first to the end of the last one's first compiled step
    after_call_s: float  # to there from the first one's first call


def _at_once(host: Host, spec: dict[str, Any], count: int, hook: bool) -> _Ranks:
    # One thread each: with more, they would spin against each other, and their CPU seconds say nothing.
    command = host.command(spec, hook=hook, extra={"OMP_NUM_THREADS": "1"})
    found = host.tree([command] * count, daemon=None if hook else False)
    for client in found["clients"]:
        if client["result"] is None:
            raise BenchmarkError(f"one of {count} processes ended with {client['status']}:\n{client['errors']}")
        if hook:
            _expect(client["result"]["reports"], "compiled", None)
    programs = [client["result"] for client in found["clients"]]
    ends = []
    for program in programs:
        # The first step is a compiled one with plain torch.compile (which has no reports) and on a hit.
        at_once = all(graph["state"] == "compiled" for graph in program["first"])
        step = program["steps"][0 if at_once else program["later"]]
        ends.append(step["at"] + step["s"])
    return _Ranks(
        found["cpu_s"],
        max(ends) - min(client["started"] for client in found["clients"]),
        max(ends) - min(program["marks"]["dynamo"] for program in programs),
    )


def start_up(effort: Effort, say: Say) -> list[Result]:
    """(e) `python -c pass` with the hook on, by either route, beside one without it."""
    routes = {"sitecustomize": "PYTHONPATH (precompiled run)", "pth": ".pth (precompiled enable)"}
    results = {
        route: Result("e", f"Python start-up with the hook, {title}: added", "ms", 1.0)
        for route, title in routes.items()
    }
    with fresh_host() as host:
        plain_python = _environment(host.root / "plain", with_hook=False)
        hook_python = _environment(host.root / "hook", with_hook=True)
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        cases = {
            "none": (plain_python, kept),
            "sitecustomize": (plain_python, python_path.with_hook(kept)),
            "pth": (hook_python, kept),
        }
        for name, (python, environment) in cases.items():
            question = "import sys; sys.exit('precompiled.bootstrap' in sys.modules)"
            on = subprocess.run([python, "-c", question], env=environment, check=False, timeout=LIMIT_S).returncode
            if on != (name != "none"):
                raise BenchmarkError(f"the hook is {'on' if on else 'off'} where it should not be: {name}")
        for result in results.values():
            result.raw = {"none, start-up (ms)": [], "with the hook, start-up (ms)": []}
        for _ in range(10):
            times: dict[str, list[float]] = {name: [] for name in cases}
            for number in range(effort.start_rounds):
                order = list(cases)[number % 3 :] + list(cases)[: number % 3]
                for name in order:
                    python, environment = cases[name]
                    started = time.perf_counter()
                    subprocess.run([python, "-c", "pass"], env=environment, check=True, timeout=LIMIT_S)
                    times[name].append((time.perf_counter() - started) * 1000)
            medians = {name: statistics.median(values) for name, values in times.items()}
            for route, result in results.items():
                result.samples.append(medians[route] - medians["none"])
                result.raw["none, start-up (ms)"].append(medians["none"])
                result.raw["with the hook, start-up (ms)"].append(medians[route])
    say(f"{10 * effort.start_rounds} starts of each kind; a sample: the difference of medians of {effort.start_rounds}")
    return list(results.values())


def _environment(directory: Path, *, with_hook: bool) -> str:
    """A virtual environment in which precompiled can be imported, and nothing else is; its Python."""
    venv.create(directory, symlinks=True, with_pip=False)
    (packages,) = (directory / "lib").glob("python*/site-packages")
    (packages / "sources.pth").write_text(f"{Path(precompiled.__file__).parent.parent}\n")
    if with_hook:
        pth.write(packages)
    return str(directory / "bin" / "python")


def daemon_memory(effort: Effort, say: Say) -> list[Result]:
    """(f) The daemon's resident memory, idle: after its start, and after a compile."""
    result = Result("f", "the daemon's resident memory, idle", "MB", 60.0)
    fresh, used = [], []
    for _ in range(effort.repeats):
        with fresh_host() as host:
            daemon = psutil.Process(host.start_daemon())
            time.sleep(2.0)
            fresh.append(daemon.memory_info().rss / 1e6)
            host.run(QUICK.spec(pending="wait"), hook=True)
            time.sleep(2.0)
            used.append(daemon.memory_info().rss / 1e6)
            say(f"{fresh[-1]:.1f} MB, after a compile {used[-1]:.1f} MB")
    result.raw = {"after its start (MB)": fresh, "after a compile (MB)": used}
    result.samples = [max(pair) for pair in zip(fresh, used, strict=True)]
    return [result]


# One of them may stand for several letters.
MEASURES: dict[str, Callable[[Effort, Say], list[Result]]] = {
    "a": first_calls,
    "b": first_calls,
    "c": steady_state,
    "d": ranks_at_once,
    "e": start_up,
    "f": daemon_memory,
    "g": lookup,
    "h": first_calls,
    "i": load,
    "j": pace,
    "k": units,
}


# ---------------------------------------------------------------- inside


def _expect(reports: list[dict[str, Any]], state: str, source: str | None) -> None:
    """A sample of something else than what is to be measured is an error, not a figure."""
    for graph in reports:
        if graph["state"] != state or (source is not None and graph["source"] != source):
            raise BenchmarkError(f"a graph is not {state} by {source}: {graph}")
    if not reports:
        raise BenchmarkError("no graph came to precompiled")


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
