"""Defines the parts of `make gpu-check`: the command of each part, its time limit, and the rows of its result."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The part "tests" leaves these tests out, because they belong to the last two parts.
TOGETHER = "capture or cuda_graphs or callers_stream or full_gpu or start_at_once"
TARGETS = "tests/gpu/test_target_artifacts.py"
# Tests of compiled kernels' values come first, because a part's time limit may cut off the last tests.
TESTS = (
    "tests/gpu/test_cuda.py",
    "tests/gpu/test_as_its_users_run_it.py",
    "tests/gpu/test_measured.py",
    "tests/gpu/test_one_key_for_all_cpus.py",
    "tests/gpu/test_device_index.py",
    "tests/gpu/test_without_gpu.py",
    "tests/gpu/test_artifact_texts.py",
)
# A test that takes longer fails, so that the next tests still run.
TEST_LIMIT_S = 100
# Pytest begins no test in the last seconds of its part, so that it can still write its results.
LAST_S = 25.0

Row = tuple[str, str]


@dataclass(frozen=True)
class Part:
    """One part of the check.

    - ``command`` returns the command, which writes its result to the given file. The function's second argument says
      whether the device is made up.
    - ``rows`` returns the rows of the report, (what, outcome), from the parsed result
    - ``read`` parses the file
    """

    name: str
    limit_s: float
    command: Callable[[Path, bool], Sequence[str]]
    rows: Callable[[Mapping[str, Any]], Sequence[Row]]
    read: Callable[[Path], dict[str, Any]] = lambda file: dict(json.loads(file.read_text()))


def _module(name: str, *arguments: str) -> Callable[[Path, bool], Sequence[str]]:
    def command(result: Path, made_up: bool) -> Sequence[str]:
        more = ["--made-up"] if made_up else []
        return [sys.executable, "-m", f"benchmarks.gpu_check.{name}", str(result), *arguments, *more]

    return command


def _pytest(files: Sequence[str], selection: str, dry: str) -> Callable[[Path, bool], Sequence[str]]:
    """``selection``: pytest's expression for the tests to run. ``dry``: the expression for a dry run."""

    def command(result: Path, made_up: bool) -> Sequence[str]:
        options = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "-n", "4", "--timeout", str(TEST_LIMIT_S)]
        chosen = [*options, "-k", dry if made_up else selection, f"--junitxml={result}"]
        return [sys.executable, "-m", "pytest", *files, *chosen]

    return command


def read_tests(file: Path) -> dict[str, Any]:
    """Return the counts of the tests' outcomes, and the first line of each failure, by test."""
    found: dict[str, Any] = {"passed": 0, "skipped": 0, "failed": {}}
    for case in xml.etree.ElementTree.parse(file).getroot().iter("testcase"):
        bad = next((item for item in case if item.tag in ("failure", "error")), None)
        if bad is not None:
            found["failed"][str(case.get("name"))] = (bad.get("message") or "").partition("\n")[0][:300]
        elif case.find("skipped") is not None:
            found["skipped"] += 1
        else:
            found["passed"] += 1
    return found


def _test_rows(result: Mapping[str, Any]) -> Sequence[Row]:
    failed = result["failed"]
    counts = f"{result['passed']} passed, {len(failed)} failed, {result['skipped']} skipped"
    return [("tests", counts), *((f"failed: {name}", why) for name, why in failed.items())]


def _first_rows(result: Mapping[str, Any]) -> Sequence[Row]:
    return [(str(what), str(said)) for what, said in result["rows"]]


def _start_rows(result: Mapping[str, Any]) -> Sequence[Row]:
    return [(f"{sample['group']}: {sample['contender']}", sample["line"]) for sample in result["samples"]]


PARTS = (
    Part("environment and one graph", 75.0, _module("first_graph"), _first_rows),
    Part("tests", 130.0, _pytest(TESTS, f"not ({TOGETHER})", "in_the_key"), _test_rows, read_tests),
    Part("starts", 185.0, _module("starts"), _start_rows),
    Part(
        "artifacts made without the GPU", 90.0, _pytest([TARGETS], "", "with_several_devices"), _test_rows, read_tests
    ),
    Part(
        "two processes, CUDA graphs, streams, a full GPU",
        60.0,
        _pytest(TESTS, TOGETHER, "callers_stream"),
        _test_rows,
        read_tests,
    ),
)
