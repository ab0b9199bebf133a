"""torch's own tests of torch.compile, beside plain: passed with an empty store, a full one, and with swaps?

`make torch-tests ARGS=FOLDER` (`python -m benchmarks.torch_tests FOLDER`). Neither torch's wheel nor this repository
has the tests: a checkout of pytorch does (test/inductor, test/dynamo, test/functorch), best of the same version. The
exit status is 1 when a test that passes plain does not pass in one of the other ways, but for those that look at what
Inductor left in the process, where the graph ran eager (table.KINDS).
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.console import begin, show
from benchmarks.harness.hosts import BenchmarkError
from benchmarks.harness.result import markdown, write_part
from benchmarks.torch_tests.table import KINDS, OURS, WAYS, Found, Limits, different, examine, kind

HEADERS = ["file", "tests", *(f"passed, {way}" for way in WAYS)]
OTHERS = [way for way in WAYS if way != "plain"]
DIFFERENCES = ["passed plain, and not so", *OTHERS]
GRAPHS = ["graphs", *OTHERS]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_tests", description=__doc__)
    parser.add_argument("path", nargs="*", type=Path, help="files with tests, or folders with files test_*.py")
    parser.add_argument("--test-limit", type=float, default=300.0, metavar="S", help="seconds of a test")
    parser.add_argument("--process-limit", type=float, default=7200.0, metavar="S", help="seconds of a process")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth test: a look")
    parser.add_argument("--select", metavar="EXPRESSION", help="as pytest's -k")
    parser.add_argument("--json", metavar="FILE", help="write what was told of each test there")
    parser.add_argument(
        "--read", action="append", type=Path, default=[], metavar="FILE", help="such a file has what was told: add it"
    )
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/reference/benchmarks.md")
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
    console, say = begin(160)
    started = time.monotonic()
    found: dict[str, dict[str, Found]] = {}
    for path in arguments.read:
        for file, ways in json.loads(path.read_text()).items():
            found[file] = {way: Found.of(told) for way, told in ways.items()}
    problems = []
    for file in files:
        try:
            found[file.name] = examine(file.resolve(), chosen, limits, say)
        except BenchmarkError as error:  # a file that needs what is not installed
            problems.append(f"{file}: {error}")
    _show(console, found, problems)
    if arguments.json:
        told = {file: {way: one.told() for way, one in ways.items()} for file, ways in found.items()}
        Path(arguments.json).write_text(json.dumps(told, indent=1))
    if arguments.docs:
        tables = ((HEADERS, _rows(found)), (DIFFERENCES, _differences(found)), (GRAPHS, _graphs(found)))
        write_part("make torch-tests ARGS=--docs", [markdown(*table) for table in tables])
    console.print(f"\n{time.monotonic() - started:.0f} s", highlight=False)
    ours = any(number != "0" for name, *numbers in _differences(found) for number in numbers if name == OURS)
    return 1 if ours or not found else 0


def _rows(found: Mapping[str, Mapping[str, Found]]) -> list[list[str]]:
    rows = []
    for file, ways in found.items():
        rows.append([file, str(len(ways["plain"].tests)), *(str(len(ways[way].passed())) for way in WAYS)])
    sums = [sum(int(row[column]) for row in rows) for column in range(1, len(HEADERS))]
    return [*rows, ["all", *map(str, sums)]]


def _differences(found: Mapping[str, Mapping[str, Found]]) -> list[list[str]]:
    """Why tests that pass plain did not pass, and how many in each way."""
    counted = {name: Counter[str]() for name in (*KINDS, OURS)}
    for ways in found.values():
        for way, tests in different(ways).items():
            for told in tests.values():
                counted[kind(told)][way] += 1
    return [[name, *(str(numbers[way]) for way in OTHERS)] for name, numbers in counted.items()]


def _graphs(found: Mapping[str, Mapping[str, Found]]) -> list[list[str]]:
    """What graphs came to, and how many of them in each way."""
    sums = {way: sum((ways[way].graphs for ways in found.values()), Counter()) for way in OTHERS}
    names = dict.fromkeys(name for way in OTHERS for name, _number in sums[way].most_common())
    return [[f"`{name}`", *(str(sums[way][name]) for way in OTHERS)] for name in names]


def _show(console: Any, found: Mapping[str, Mapping[str, Found]], problems: list[str]) -> None:
    show(console, HEADERS, _rows(found))
    show(console, DIFFERENCES, _differences(found))
    show(console, GRAPHS, _graphs(found))
    for file, ways in found.items():
        for way, tests in different(ways).items():
            for name, told in tests.items():
                said = f"{way}: {file}::{name.split('::', 1)[-1]}: {kind(told)}: {told['outcome']} {told.get('at', '')}"
                if kind(told) == OURS:
                    console.print(f"{said}\n{told['why'][-300:]}", style="red", markup=False, highlight=False)
                else:
                    console.print(said, markup=False, highlight=False)
    for problem in problems:
        console.print(problem, style="yellow", markup=False, highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
