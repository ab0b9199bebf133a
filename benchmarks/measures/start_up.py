"""Measures (e): the time that the hook adds to each start of Python."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
import venv
from pathlib import Path

import precompiled
from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import LIMIT_S, BenchmarkError, fresh_host
from benchmarks.harness.result import Result
from precompiled.cli import pth
from precompiled.core import python_path


def start_up(effort: Effort, say: Say) -> list[Result]:
    """(e) `python -c pass` with the hook switched on in each of two ways, relative to `python -c pass` without the
    hook.
    """
    routes = {"sitecustomize": "PYTHONPATH (precompiled run)", "pth": ".pth (precompiled enable)"}
    results = {
        route: Result("e", f"Python start-up with the hook, {title}: added", "ms", 1.0)
        for route, title in routes.items()
    }
    with fresh_host() as host:
        plain_python = _virtual_environment(host.root / "plain", with_hook=False)
        hook_python = _virtual_environment(host.root / "hook", with_hook=True)
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        cases = {
            "none": (plain_python, kept),
            "sitecustomize": (plain_python, python_path.with_hook(kept)),
            "pth": (hook_python, kept),
        }
        for name, (python, variables) in cases.items():
            question = "import sys; sys.exit('precompiled.bootstrap' in sys.modules)"
            on = subprocess.run([python, "-c", question], env=variables, check=False, timeout=LIMIT_S).returncode
            if on != (name != "none"):
                raise BenchmarkError(f"the hook is {'on' if on else 'off'} where it should not be: {name}")
        for result in results.values():
            result.raw = {"none, start-up (ms)": [], "with the hook, start-up (ms)": []}
        for _ in range(10):
            times: dict[str, list[float]] = {name: [] for name in cases}
            for number in range(effort.start_rounds):
                order = list(cases)[number % 3 :] + list(cases)[: number % 3]
                for name in order:
                    python, variables = cases[name]
                    started = time.perf_counter()
                    # This call has no timeout. With a timeout, subprocess would check only after 0.5, 1.5, 3.5, 7.5,
                    # 15.5, ... ms whether the process has ended.
                    subprocess.run([python, "-c", "pass"], env=variables, check=True)
                    times[name].append((time.perf_counter() - started) * 1000)
            medians = {name: statistics.median(values) for name, values in times.items()}
            for route, result in results.items():
                result.samples.append(medians[route] - medians["none"])
                result.raw["none, start-up (ms)"].append(medians["none"])
                result.raw["with the hook, start-up (ms)"].append(medians[route])
    say(f"{10 * effort.start_rounds} starts of each kind; a sample: the difference of medians of {effort.start_rounds}")
    return list(results.values())


def _virtual_environment(directory: Path, *, with_hook: bool) -> str:
    """Make a virtual environment that contains only precompiled; return its Python."""
    venv.create(directory, symlinks=True, with_pip=False)
    (packages,) = (directory / "lib").glob("python*/site-packages")
    (packages / "sources.pth").write_text(f"{Path(precompiled.__file__).parent.parent}\n")
    if with_hook:
        pth.write(packages)
    return str(directory / "bin" / "python")
