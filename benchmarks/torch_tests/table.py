"""The same tests four times: plain, with an empty store, with what that left there, and with a swap in between."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import PACKAGES, ROOT, BenchmarkError, Host, fresh_host
from benchmarks.torch_tests.plugin import EVERY, VARIABLE, told

# Modes by way, in the order of the columns; plain has none.
WAYS = {"plain": None, "cold": "wait", "warm": "wait", "swap": "eager"}

Told = dict[str, Any]  # of plugin.py

# What a test looks at in its process that is not there while a graph runs eager, by what it says where it fails. With
# an artifact all of it is there: torch keeps code and counts with what it caches, and restores them at a load.
KINDS = {
    "looks at the code that Inductor wrote": re.compile(r"\b(source_)?codes?\b|FileCheck|run_and_get_"),
    "looks at what Inductor counted": re.compile(r"\b_?metrics\.|\bcounters?\b|_counts?\b"),
    "looks at a profile": re.compile(r"\bprofiler?\b"),
    # docs/explanation/stand-in.md
    "looks at the name of an autograd node": re.compile(r"\bgrad_fn\.(__class__|name\b)"),
}
OURS = "ours"


@dataclass
class Found:
    """What became of the tests of one file in one way, by id, and how many of its graphs came to what."""

    tests: dict[str, Told] = field(default_factory=dict)
    graphs: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Found:
        """From what ``told`` gave."""
        return cls({one["test"]: one for one in told["tests"]}, Counter(told["graphs"]))

    def told(self) -> dict[str, Any]:
        return {"tests": list(self.tests.values()), "graphs": dict(self.graphs)}

    def passed(self) -> set[str]:
        return {name for name, told in self.tests.items() if told["outcome"] == "passed"}


@dataclass(frozen=True)
class Limits:
    """Seconds that a test, and a process, may take; and of how many tests one is run."""

    test_s: float
    process_s: float
    every: int = 1


def examine(file: Path, pytest_arguments: Sequence[str], limits: Limits, say: Say) -> dict[str, Found]:
    """What was found, by way. Raises BenchmarkError where pytest comes to no test plain."""
    found = {}
    with fresh_host() as host:
        host.start_daemon()
        for way in WAYS:
            if way == "swap":
                host.clear()  # so that there is something to swap
            try:
                found[way] = _run(host, way, [str(file), *pytest_arguments], limits)
            except BenchmarkError as error:
                if way == "plain":
                    raise
                # Plain comes to its tests, so each of them differs.
                died = {"outcome": "died", "why": str(error)}
                found[way] = Found({name: {"test": name, **died} for name in found["plain"].tests})
            say(f"{file.name}: {way}: {len(found[way].passed())} of {len(found[way].tests)} passed")
    return found


def different(found: Mapping[str, Found]) -> dict[str, dict[str, Told]]:
    """By way, the tests that pass plain and did not there."""
    passed = found["plain"].passed()
    return {
        way: {name: told for name, told in other.tests.items() if name in passed and told["outcome"] != "passed"}
        for way, other in found.items()
    }


def kind(told: Told) -> str:
    """Why a test that passes plain did not pass: one of KINDS, or OURS."""
    if told["outcome"] != "failed":
        return OURS
    return next((name for name, words in KINDS.items() if words.search(told.get("at", ""))), OURS)


def _run(host: Host, way: str, arguments: Sequence[str], limits: Limits) -> Found:
    """All tests in one process; by another one from where a process died."""
    answers, log, mode = host.root / f"{way}.jsonl", host.root / f"{way}.log", WAYS[way]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    extra = {VARIABLE: str(answers), EVERY: str(limits.every), "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **PACKAGES}
    variables = host.variables(hook=mode is not None, extra={**extra, "PRECOMPILED_MODE": mode or "wait"})
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "benchmarks.torch_tests.plugin",
        "--timeout", str(limits.test_s), *arguments,
    ]  # fmt: skip
    known = 0
    while True:
        with log.open("w") as output:
            process = subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT)
            try:
                process.wait(limits.process_s)
            except subprocess.TimeoutExpired:
                pass
            finally:  # when this process is ended as well
                process.kill()
                process.wait()
        lines = told(answers)
        if len(lines) == known:
            raise BenchmarkError(f"pytest ended with {process.returncode} before a test:\n{log.read_text()[-3000:]}")
        if "graphs" in lines[-1]:
            return _found(lines)
        if "begun" in lines[-1]:
            died = {"test": lines[-1]["begun"], "outcome": "died", "why": log.read_text()[-1000:]}
            with answers.open("a") as file:
                file.write(json.dumps(died) + "\n")
        known = len(lines)


def _found(lines: Sequence[Told]) -> Found:
    found = Found()
    for line in lines:
        found.graphs.update(line.get("graphs", {}))
        # A test that is told twice passed at first, and failed when it was torn down.
        if "test" in line:
            found.tests[line["test"]] = line
    return found
