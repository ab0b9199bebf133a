"""The measures, one function each: samples in fresh processes, what is compared interleaved."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

import precompiled
from benchmarks.hosts import LIMIT_S, BenchmarkError, Host, Model, fresh_host, run_json
from benchmarks.lookup import lookup
from benchmarks.result import Result
from precompiled.cli import probe, pth

GPT2 = Model(layers=12, width=768, vocabulary=50257, batch=2, length=64)
SMALL = Model(layers=2, width=128, vocabulary=1024, batch=2, length=64)


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    model: Model
    repeats: int  # fresh processes of each kind
    steady_rounds: int
    start_rounds: int  # of each block of (e)


FULL = Effort(GPT2, repeats=5, steady_rounds=40, start_rounds=30)
QUICK = Effort(SMALL, repeats=2, steady_rounds=10, start_rounds=10)

Say = Callable[[str], None]


def first_call_cold(effort: Effort, say: Say) -> list[Result]:
    """(a) The first training step, nothing cached; and what we add over Dynamo's tracing plus one eager step."""
    ratio = Result("a", "first call, nothing cached: ours / torch.compile", "", 0.2)
    added = Result("a", "first call, nothing cached: ours - (Dynamo + eager step)", "s", 0.1)
    spec = effort.model.spec(task="first")

    def ours() -> float:
        with fresh_host() as host:
            host.start_daemon()
            result = host.run(spec, hook=True)
            _expect(result["first"], "pending", None)
            _expect(result["reports"], "compiled", "swap")
            return float(result["first_s"])

    def plain() -> float:
        with fresh_host() as host:
            return float(host.run(spec, hook=False)["first_s"])

    def traced() -> float:
        with fresh_host() as host:
            return float(host.run({**spec, "backend": "eager"}, hook=False)["first_s"])

    raw = _interleaved({"ours": ours, "torch.compile": plain, "Dynamo + eager": traced}, effort.repeats, say)
    ratio.raw = {f"{name}, first call (s)": values for name, values in raw.items()}
    ratio.samples = [left / right for left, right in zip(raw["ours"], raw["torch.compile"], strict=True)]
    added.samples = [left - right for left, right in zip(raw["ours"], raw["Dynamo + eager"], strict=True)]
    return [ratio, added]


def first_call_warm(effort: Effort, say: Say) -> list[Result]:
    """(b) The first training step with the artifact present, and torch.compile's with its own cache filled."""
    result = Result("b", "first call, artifact present: ours / torch.compile warm", "", 0.75)
    spec = effort.model.spec(task="first")
    with fresh_host() as our_host, fresh_host() as plain_host:
        our_host.start_daemon()
        our_host.run(spec, hook=True)
        plain_host.run(spec, hook=False)
        say("both caches are filled")

        def ours() -> float:
            found = our_host.run(spec, hook=True)
            _expect(found["first"], "compiled", "hit")
            return float(found["first_s"])

        def plain() -> float:
            return float(plain_host.run(spec, hook=False)["first_s"])

        raw = _interleaved({"ours": ours, "torch.compile": plain}, 2 * effort.repeats, say)
    result.raw = {f"{name}, first call (s)": values for name, values in raw.items()}
    result.samples = [left / right for left, right in zip(raw["ours"], raw["torch.compile"], strict=True)]
    return [result]


def steady_state(effort: Effort, say: Say) -> list[Result]:
    """(c) Steps after the swap: two processes that live side by side take turns, a few steps each."""
    result = Result("c", "steady state after the swap: ours / torch.compile", "", 1.02)
    spec = effort.model.spec(task="steady")
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


def four_at_once(effort: Effort, say: Say) -> list[Result]:
    """(d) CPU seconds of four processes that start cold at once, beyond the same four warm."""
    result = Result("d", "CPU s of 4 processes cold, beyond 4 warm: ours / torch.compile", "", 0.5)
    spec = effort.model.spec(task="work", steps=5)
    raw: dict[str, list[float]] = {}
    for _ in range(max(1, effort.repeats // 2)):
        beyond = {}
        for name, hook in (("ours", True), ("torch.compile", False)):
            with fresh_host() as host:
                seconds = {}
                for temperature in ("cold", "warm"):
                    seconds[temperature] = _four(host, spec, hook)
                    raw.setdefault(f"{name}, {temperature} (CPU s)", []).append(seconds[temperature])
                    say(f"{name}, {temperature}: {seconds[temperature]:.1f} CPU s")
                beyond[name] = seconds["cold"] - seconds["warm"]
        result.samples.append(beyond["ours"] / beyond["torch.compile"])
    result.raw = raw
    return [result]


def _four(host: Host, spec: dict[str, Any], hook: bool) -> float:
    # One thread each: with more, they would spin against each other, and their CPU seconds say nothing.
    environment = host.environment(hook=hook, extra={"OMP_NUM_THREADS": "1"})
    command = {"argv": host.command(spec, hook=hook), "env": environment}
    stop = {"argv": host.stop_command(), "env": environment} if hook else None
    tree = str(Path(__file__).parent / "tree_cpu.py")
    found = run_json([sys.executable, tree, json.dumps({"commands": [command] * 4, "stop": stop})], dict(os.environ))
    if hook:
        for client_result in found["results"]:
            _expect(client_result["reports"], "compiled", None)
    return float(found["cpu_s"])


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
            "sitecustomize": (plain_python, probe.with_hook(kept)),
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
            host.run(SMALL.spec(task="first"), hook=True)
            time.sleep(2.0)
            used.append(daemon.memory_info().rss / 1e6)
            say(f"{fresh[-1]:.1f} MB, after a compile {used[-1]:.1f} MB")
    result.raw = {"after its start (MB)": fresh, "after a compile (MB)": used}
    result.samples = [max(pair) for pair in zip(fresh, used, strict=True)]
    return [result]


MEASURES: dict[str, Callable[[Effort, Say], list[Result]]] = {
    "a": first_call_cold,
    "b": first_call_warm,
    "c": steady_state,
    "d": four_at_once,
    "e": start_up,
    "f": daemon_memory,
    "g": lookup,
}


# ---------------------------------------------------------------- inside


def _interleaved(kinds: dict[str, Callable[[], float]], repeats: int, say: Say) -> dict[str, list[float]]:
    """One sample of each kind after the other, in turns, each time beginning with another."""
    found: dict[str, list[float]] = {name: [] for name in kinds}
    names = list(kinds)
    for number in range(repeats):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(kinds[name]())
        say(", ".join(f"{name} {values[-1]:.2f} s" for name, values in found.items()))
    return found


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
        self.process = subprocess.Popen(
            host.command(spec, hook=hook), env=host.environment(hook=hook),
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
