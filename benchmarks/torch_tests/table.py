"""Runs torch's own tests of torch.compile with an empty store, with a full one, and with swaps.

`make torch-tests ARGS=FOLDER` (`python -m benchmarks.torch_tests FOLDER`). The tests are in a checkout of pytorch
(test/inductor, test/dynamo, test/functorch), preferably of the same version. torch's wheel does not contain them.

Exits 1 if a test passes with plain torch.compile but fails in one of these ways. Failures of tests that inspect
Inductor's data do not count while a graph runs eager, because that data does not exist then (KINDS).
"""

from __future__ import annotations

import argparse
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
from benchmarks.harness.hosts import DEFAULTS, ROOT, BenchmarkError, Host, fresh_host
from benchmarks.harness.table_command import Report, add_files, run_table
from benchmarks.torch_tests import plugin

# Maps a way of running the tests to precompiled's mode, in the order of the columns. Plain torch.compile has no mode.
WAYS = {"plain": None, "cold": "wait", "warm": "wait", "swap": "eager"}

TestResult = dict[str, Any]  # a line of plugin.py

# Tests may inspect data of Inductor that does not exist while a graph runs eager. The statement that fails shows which
# data the test inspects. With an artifact, the data exists, because torch saves the code and the counters in its cache,
# and restores both.
KINDS = {
    "the test checks the code that Inductor wrote": re.compile(r"\b(source_)?codes?\b|FileCheck|run_and_get_"),
    "the test checks Inductor's counters": re.compile(r"\b_?metrics\.|\bcounters?\b|_counts?\b"),
    "the test checks a profile": re.compile(r"\bprofiler?\b"),
    # see docs/explanation/stand-in.md
    "the test checks the name of an autograd node": re.compile(r"\bgrad_fn\.(__class__|name\b)"),
}
OURS = "a fault of precompiled"


@dataclass
class Found:
    """One file's tests, run in one way: each test's result by id, and the number of graphs by state."""

    tests: dict[str, TestResult] = field(default_factory=dict)
    graphs: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> Found:
        """Make a Found from the result of the method ``as_record``."""
        return cls({one["test"]: one for one in result["tests"]}, Counter(result["graphs"]))

    def as_record(self) -> dict[str, Any]:
        return {"tests": list(self.tests.values()), "graphs": dict(self.graphs)}

    def passed(self) -> set[str]:
        return {name for name, result in self.tests.items() if result["outcome"] == "passed"}


@dataclass(frozen=True)
class Limits:
    """Time limits of a test and of a process, in seconds; ``every``: run only each Nth test."""

    test_s: float
    process_s: float
    every: int = 1


def examine(file: Path, pytest_arguments: Sequence[str], limits: Limits, say: Say) -> dict[str, Found]:
    """Return the results by way. Raises BenchmarkError if pytest runs no test with plain torch.compile."""
    found = {}
    with fresh_host() as host:
        host.start_daemon()
        for way in WAYS:
            if way == "swap":
                host.clear()  # with the artifacts of earlier tests, nothing would be swapped
            try:
                found[way] = _run(host, way, [str(file), *pytest_arguments], limits)
            except BenchmarkError as error:
                if way == "plain":
                    raise
                # Plain torch.compile ran these tests, but this way ran none, so all of them count as died.
                died = {"outcome": "died", "why": str(error)}
                found[way] = Found({name: {"test": name, **died} for name in found["plain"].tests})
            say(f"{file.name}: {way}: {len(found[way].passed())} of {len(found[way].tests)} passed")
    return found


def different(found: Mapping[str, Found]) -> dict[str, dict[str, TestResult]]:
    """Return, by way, the tests that fail although they pass with plain torch.compile."""
    passed = found["plain"].passed()
    return {
        way: {name: result for name, result in other.tests.items() if name in passed and result["outcome"] != "passed"}
        for way, other in found.items()
    }


def kind(result: TestResult) -> str:
    """Return the kind of a failure: one of KINDS, or OURS."""
    if result["outcome"] != "failed":
        return OURS
    return next((name for name, words in KINDS.items() if words.search(result.get("at", ""))), OURS)


def _run(host: Host, way: str, arguments: Sequence[str], limits: Limits) -> Found:
    """Run all tests in one process. If the process dies, a new process runs the remaining tests."""
    answers, log, mode = host.root / f"{way}.jsonl", host.root / f"{way}.log", WAYS[way]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    extra = {
        plugin.VARIABLE: str(answers),
        plugin.EVERY: str(limits.every),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": path,
        "PRECOMPILED_MODE": mode or "wait",
        **DEFAULTS,
    }
    variables = host.variables(hook=mode is not None, extra=extra)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "benchmarks.torch_tests.plugin",
        "--timeout",
        str(limits.test_s),
        *arguments,
    ]
    known = 0
    while True:
        with log.open("w") as output:
            process = subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT)
            try:
                process.wait(limits.process_s)
            except subprocess.TimeoutExpired:
                pass
            finally:  # kill the program even if this process ends
                process.kill()
                process.wait()
        lines = plugin.results(answers)
        if len(lines) == known:
            raise BenchmarkError(f"pytest ended with {process.returncode} before a test:\n{log.read_text()[-3000:]}")
        if "graphs" in lines[-1]:
            return _found(lines)
        if "begun" in lines[-1]:
            died = {"test": lines[-1]["begun"], "outcome": "died", "why": log.read_text()[-1000:]}
            with answers.open("a") as file:
                file.write(json.dumps(died) + "\n")
        known = len(lines)


def _found(lines: Sequence[TestResult]) -> Found:
    found = Found()
    for line in lines:
        found.graphs.update(line.get("graphs", {}))
        # A test that passes and then fails in its teardown has two lines; the last one counts.
        if "test" in line:
            found.tests[line["test"]] = line
    return found


HEADERS = ["file", "tests", *(f"passed, {way}" for way in WAYS)]
OTHERS = [way for way in WAYS if way != "plain"]
DIFFERENCES = ["why a test passes only with plain", *OTHERS]
GRAPHS = ["graphs", *OTHERS]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_tests", description=__doc__)
    parser.add_argument("path", nargs="*", type=Path, help="files with tests, or folders with files test_*.py")
    parser.add_argument("--test-limit", type=float, default=300.0, metavar="S", help="seconds of a test")
    parser.add_argument("--process-limit", type=float, default=7200.0, metavar="S", help="seconds of a process")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth test: a look")
    parser.add_argument("--select", metavar="EXPRESSION", help="as pytest's -k")
    add_files(
        parser,
        json="write the result of each test to this file",
        read="add the results of such a file",
        docs="tables of docs/reference/benchmarks.md",
    )
    arguments = parser.parse_args()
    files: list[Path] = []
    for path in arguments.path:
        files += sorted(path.glob("test_*.py")) if path.is_dir() else [path]
    if missing := [str(file) for file in files if not file.is_file()]:
        parser.error(f"no file: {', '.join(missing)}")
    if not files and not arguments.read:
        parser.error("no file with tests is named")
    limits = Limits(arguments.test_limit, arguments.process_limit, arguments.every)
    chosen = ["-k", arguments.select] if arguments.select else []

    def measure(say: Say) -> Report:
        found: dict[str, dict[str, Found]] = {}
        for record in map(json.loads, map(Path.read_text, arguments.read)):
            found |= {file: {way: Found.of(result) for way, result in ways.items()} for file, ways in record.items()}
        problems = []
        for test_file in files:
            try:
                found[test_file.name] = examine(test_file.resolve(), chosen, limits, say)
            except BenchmarkError as error:  # a file that needs a missing module gives this error
                problems.append(f"{test_file}: {error}")
        return report(found, problems)

    return run_table(arguments, measure, width=160, mark="make torch-tests ARGS=--docs")


def report(found: Mapping[str, Mapping[str, Found]], problems: list[str]) -> Report:
    """``problems``: the errors of files whose tests did not run."""
    remarks: list[tuple[str, str | None]] = []
    for file, ways in found.items():
        for way, tests in different(ways).items():
            for name, result in tests.items():
                test, end = name.split("::", 1)[-1], f"{result['outcome']} {result.get('at', '')}"
                said = f"{way}: {file}::{test}: {kind(result)}: {end}"
                ours = kind(result) == OURS
                remarks.append((f"{said}\n{result['why'][-300:]}" if ours else said, "red" if ours else None))
    rows, differences = _rows(found), _differences(found)
    return Report(
        bool(found) and not any(number != "0" for name, *numbers in differences for number in numbers if name == OURS),
        tables=[(HEADERS, rows), (DIFFERENCES, differences), (GRAPHS, _graphs(found))],
        remarks=remarks + [(problem, "yellow") for problem in problems],
        record={file: {way: one.as_record() for way, one in ways.items()} for file, ways in found.items()},
        parts=[_sentences(rows[-1], differences)],
    )


def _sentences(totals: Sequence[str], differences: Sequence[Sequence[str]]) -> str:
    """Return the tables in words for the docs: all tests, and the tests that pass only with plain torch.compile."""
    _, tests, *passed = totals
    ways = ", ".join(f"{number} {way}" for number, way in zip(passed, WAYS, strict=True))
    lost = [
        f"- {way} ({number}): {name}."
        for name, *numbers in differences
        for number, way in zip(numbers, OTHERS, strict=True)
        if number != "0"
    ]
    return "\n".join([f"Passed, of {tests} tests: {ways}. Failed tests that pass with plain:\n", *(lost or ["None."])])


def _rows(found: Mapping[str, Mapping[str, Found]]) -> list[list[str]]:
    rows = []
    for file, ways in found.items():
        rows.append([file, str(len(ways["plain"].tests)), *(str(len(ways[way].passed())) for way in WAYS)])
    sums = [sum(int(row[column]) for row in rows) for column in range(1, len(HEADERS))]
    return [*rows, ["all", *map(str, sums)]]


def _differences(found: Mapping[str, Mapping[str, Found]]) -> list[list[str]]:
    """Return the kinds of failures, and their number in each way."""
    counted = {name: Counter[str]() for name in (*KINDS, OURS)}
    for ways in found.values():
        for way, tests in different(ways).items():
            for result in tests.values():
                counted[kind(result)][way] += 1
    return [[name, *(str(numbers[way]) for way in OTHERS)] for name, numbers in counted.items()]


def _graphs(found: Mapping[str, Mapping[str, Found]]) -> list[list[str]]:
    """Return the states of graphs, and their number in each way."""
    sums = {way: sum((ways[way].graphs for ways in found.values()), Counter()) for way in OTHERS}
    names = dict.fromkeys(name for way in OTHERS for name, _number in sums[way].most_common())
    return [[f"`{name}`", *(str(sums[way][name]) for way in OTHERS)] for name in names]
