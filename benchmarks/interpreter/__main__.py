"""What artifacts for CUDA compute, without a GPU: their Triton kernels by Triton's interpreter, against eager.

`make interpreter` (`python -m benchmarks.interpreter`), on the made-up device
(docs/explanation/made-up-cuda.md), with a CUDA build of torch in an environment of its own (5 GB); an hour on 2 cores.
The exit status is 1 when a row or a kernel is not equal to eager, except rows that cannot be had here (WITHOUT).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.harness.console import begin, show
from benchmarks.harness.hosts import ROOT, BenchmarkError
from benchmarks.harness.result import markdown, write_part
from benchmarks.interpreter.table import HEADERS, KERNEL_STATES, Row, examine, row_of

MARK = "make interpreter ARGS=--docs"
# Which eager cannot run on the made-up device, or no artifact has; docs/reference/benchmarks.md says why of each.
WITHOUT = frozenset({
    "operator_of_a_library", "numpy_functions", "numpy_methods_and_operators", "all_dynamic_with_floats_of_modules",
    "attention_flash_attention", "frozen_linear", "frozen_convolution", "freezing_by_option",
    "cpp_wrapper", "cpp_wrapper_of_any_size", "compiled_autograd_module_hooks",
})  # fmt: skip
TOTALS = [
    "",
    "rows",
    "equal",
    "wrong",
    "not to the end",
    "Triton kernels",
    "with a launcher",
    "tried",
    *KERNEL_STATES,
]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.interpreter", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--torch", default="2.15.0", metavar="VERSION", help="whose CUDA build (2.15.0)")
    parser.add_argument("--device", default="h100", metavar="KIND", help="the made-up GPU (h100)")
    parser.add_argument("--only", action="append", metavar="NAME", help="rows with this word (repeatable; a,b)")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth row: a look, no figure")
    parser.add_argument("--json", metavar="FILE", help="write each row there; those that it has are not run again")
    parser.add_argument(
        "--read", action="append", type=Path, metavar="FILE", help="run nothing: such a file has what was found"
    )
    parser.add_argument("--docs", action="store_true", help="write the tables of docs/reference/benchmarks.md")
    arguments = parser.parse_args()
    if arguments.read is None and not os.environ.get("CUDA_MADE_UP"):
        return _on_made_up(arguments.torch, arguments.device)
    console, say = begin(170)
    started = time.monotonic()
    file = Path(arguments.json) if arguments.json else None
    rows: list[Row] = []
    for path in arguments.read or ([file] if file and file.exists() else []):
        rows += [row_of(told) for told in json.loads(path.read_text())]
    try:
        for row in [] if arguments.read else examine(_names(parser, arguments, rows), say):
            rows.append(row)
            if file is not None:
                file.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    except BenchmarkError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    show(console, HEADERS, [row.cells() for row in rows], [None if row.state == "equal" else "red" for row in rows])
    for row in rows:
        if row.state != "equal":
            console.print(f"{row.name}: {row.state}: {row.why}", markup=False, highlight=False)
    totals, reasons = _totals(rows), _reasons(rows)
    show(console, TOTALS, totals)
    show(console, ["why", "kernels or rows"], reasons)
    if arguments.docs:
        write_part(MARK, [markdown(TOTALS, totals), *([markdown(["why", "of"], reasons)] if reasons else [])])
    console.print(f"\n{time.monotonic() - started:.0f} s", highlight=False)
    return 0 if is_right(rows) else 1


def is_right(rows: Sequence[Row]) -> bool:
    states = {state for _name, state, _why in _kernels(rows).values()}
    return (
        "equal" in states
        and states.isdisjoint(("wrong", "not runnable"))
        and all(
            row.state == "equal"
            or (row.state in ("no row", "no artifact") and row.name.removeprefix("corpus ") in WITHOUT)
            for row in rows
        )
    )


def _on_made_up(version: str, device: str) -> int:
    """The same command in the environment that has the CUDA build, on a host with the device."""
    sys.path.insert(0, str(ROOT / "tests" / "versions"))
    environments = import_module("environments")

    from precompiled.made_up_cuda import host

    print("NOT ON A GPU: the device is made up, its kernels are run by Triton's interpreter.", flush=True)
    try:
        python = environments.python_of(version)
    except environments.Unavailable as error:
        print(f"torch {version}: {error}")
        return 1
    with tempfile.TemporaryDirectory(prefix="made-up-cuda-") as state:
        environment = {**os.environ, **host.variables(python, device, Path(state))}
        command = [python, "-m", "benchmarks.interpreter", *sys.argv[1:]]
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def _names(parser: argparse.ArgumentParser, arguments: argparse.Namespace, known_rows: Sequence[Row]) -> list[str]:
    """What is asked for, without what is known."""
    from benchmarks.interpreter.rows import rows

    known = rows()
    wanted = [word for item in arguments.only or [] for word in item.split(",")]
    if unknown := [word for word in wanted if not any(word in row.split() for row in known)]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [row for row in known if not wanted or set(wanted) & set(row.split())][:: arguments.every]
    return [name for name in chosen if name not in {row.name for row in known_rows}]


def _kernels(rows: Sequence[Row]) -> dict[str, tuple[str, str, str]]:
    """Distinct kernels; what is worst of one that several rows have, but equal rather than stopped."""
    worst = ("wrong", "not runnable", "equal", "stopped", "unreached")
    found: dict[str, tuple[str, str, str]] = {}
    for row in rows:
        for digest, kernel in row.kernels.items():
            if digest not in found or worst.index(kernel[1]) < worst.index(found[digest][1]):
                found[digest] = kernel
    return found


def _states(rows: Sequence[Row], *states: str) -> int:
    return sum(row.state in states for row in rows)


def _totals(rows: Sequence[Row]) -> list[list[str]]:
    groups = dict.fromkeys(row.name if row.name.startswith("model ") else row.name.split()[0] for row in rows)
    table = []
    for group in [*groups, "all"]:
        part = [row for row in rows if group == "all" or row.name.startswith(group)]
        kernels = _kernels(part)
        counts = {state: sum(found == state for _n, found, _w in kernels.values()) for state in KERNEL_STATES}
        equal, wrong = _states(part, "equal"), _states(part, "wrong")
        numbers = (
            len(part), equal, wrong, len(part) - equal - wrong, len(kernels),
            len({digest for row in part for digest in row.brought}), len(kernels) - counts["unreached"],
            *counts.values(),
        )  # fmt: skip
        table.append([group, *map(str, numbers)])
    assert all(len(row) == len(TOTALS) for row in table)
    return table


def _reasons(rows: Sequence[Row]) -> list[list[str]]:
    found: dict[str, list[str]] = {}
    for name, state, why in _kernels(rows).values():
        if state == "not runnable":
            found.setdefault(f"kernel: {why}", []).append(name)
    for row in rows:
        if row.state not in ("equal", "wrong"):
            why = re.split(r"\. | \(", row.why)[0][:120]  # the first sentence
            found.setdefault(f"{row.state}: {why}", []).append(row.name.removeprefix("corpus "))
    return [[f"`{why}`", f"{len(names)}: {', '.join(names)}"] for why, names in found.items()]


if __name__ == "__main__":
    raise SystemExit(main())
