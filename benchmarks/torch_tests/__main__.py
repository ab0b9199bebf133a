"""torch's own tests of torch.compile, beside plain: passed with an empty store, a full one, and with swaps?

`make torch-tests ARGS=FOLDER` (`python -m benchmarks.torch_tests FOLDER`). Neither torch's wheel nor this repository
has the tests: a checkout of pytorch does (test/inductor, test/dynamo, test/functorch), best of the same version. The
exit status is 1 when a test that passes plain does not pass in one of the other ways.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.harness.console import begin, show
from benchmarks.harness.hosts import BenchmarkError
from benchmarks.torch_tests.table import WAYS, Found, Limits, different, examine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_tests", description=__doc__)
    parser.add_argument("path", nargs="+", type=Path, help="files with tests, or folders with files test_*.py")
    parser.add_argument("--test-limit", type=float, default=300.0, metavar="S", help="seconds of a test")
    parser.add_argument("--process-limit", type=float, default=7200.0, metavar="S", help="seconds of a process")
    parser.add_argument("--select", metavar="EXPRESSION", help="as pytest's -k")
    parser.add_argument("--json", metavar="FILE", help="write what was told of each test there")
    arguments = parser.parse_args()
    files: list[Path] = []
    for path in arguments.path:
        files += sorted(path.glob("test_*.py")) if path.is_dir() else [path]
    if missing := [str(file) for file in files if not file.is_file()]:
        parser.error(f"no file: {', '.join(missing)}")
    limits = Limits(arguments.test_limit, arguments.process_limit)
    chosen = ["-k", arguments.select] if arguments.select else []
    console, say = begin(160)
    started = time.monotonic()
    found: dict[str, dict[str, Found]] = {}
    problems = []
    for file in files:
        try:
            found[str(file)] = examine(file.resolve(), chosen, limits, say)
        except BenchmarkError as error:  # a file that needs what is not installed
            problems.append(f"{file}: {error}")
    _show(console, found, problems)
    if arguments.json:
        told = {file: {way: list(one.tests.values()) for way, one in ways.items()} for file, ways in found.items()}
        Path(arguments.json).write_text(json.dumps(told, indent=1))
    console.print(f"\n{time.monotonic() - started:.0f} s", highlight=False)
    return 1 if any(tests for ways in found.values() for tests in different(ways).values()) or not found else 0


def _show(console: Any, found: dict[str, dict[str, Found]], problems: list[str]) -> None:
    rows = [
        [Path(file).name, str(len(ways["plain"].tests)), *(str(len(ways[way].passed())) for way in WAYS)]
        for file, ways in found.items()
    ]
    show(console, ["file", "tests", *(f"passed, {way}" for way in WAYS)], rows)
    for way in WAYS:
        graphs: Counter[str] = sum((ways[way].graphs for ways in found.values()), Counter())
        if graphs:
            said = ", ".join(f"{number} {reason}" for reason, number in graphs.most_common())
            console.print(f"graphs, {way}: {said}", highlight=False)
    for file, ways in found.items():
        for way, tests in different(ways).items():
            for name, told in tests.items():
                said = f"{way}: {Path(file).name}::{name.split('::', 1)[-1]}: {told['outcome']}: {told['why'][-300:]}"
                console.print(said, style="red", markup=False, highlight=False)
    for problem in problems:
        console.print(problem, style="yellow", markup=False, highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
