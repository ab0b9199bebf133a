"""Checks the values of artifacts for CUDA without a GPU: Triton's interpreter runs their kernels.

`make interpreter` (`python -m benchmarks.interpreter`) takes an hour on 2 cores. The command runs on the made-up device
(docs/explanation/made-up-cuda.md), with a CUDA build of torch in a separate environment (5 GB).

Exits 1 if a row has no result or differs from eager, or if a kernel is wrong or not runnable. Only the rows in WITHOUT
may lack a result.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

from benchmarks.harness.answers import run_rows
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import ROOT, Command, Host, fresh_host, with_precompiled
from benchmarks.harness.made_up import run_on_made_up_gpu
from benchmarks.harness.table_command import (
    Report,
    add_every,
    add_files,
    add_only,
    read_records,
    report_rows,
    run_table,
)

ROW_LIMIT_S = 900.0
LOT = 20
ADDRESSES = "OutsideOfArguments"

# States of a kernel. "stopped": the kernel ran, but another kernel's error ended the row. "unreached": no call ran it.
KERNEL_STATES = ("equal", "wrong", "not runnable", "stopped", "unreached")

# Rows that eager cannot run on the made-up device, or that have no artifact. Reasons: docs/reference/benchmarks.md.
WITHOUT = frozenset(
    {
        "operator_of_a_library",
        "numpy_functions",
        "numpy_methods_and_operators",
        "all_dynamic_with_floats_of_modules",
        "attention_flash_attention",
        "frozen_linear",
        "frozen_convolution",
        "freezing_by_option",
        "cpp_wrapper",
        "cpp_wrapper_of_any_size",
        "compiled_autograd_module_hooks",
    }
)
TOTALS = [
    "",
    "rows",
    "equal",
    "wrong",
    "no result",
    "Triton kernels",
    "with a launcher",
    "tried",
    *KERNEL_STATES,
]


@dataclass
class Row:
    """The result of a row. ``kernels`` maps the digest of a source to (name, state, reason).

    ``brought``: the kernels for whose source the artifact has machine code and a launcher.
    """

    name: str
    # equal; wrong; launched (kernels ran on the device, which computes nothing); stopped (by an error); no artifact; no
    # row (eager does not run on the device)
    state: str
    why: str
    kernels: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    brought: list[str] = field(default_factory=list)
    programs: int = 0
    seconds: float = 0.0

    def count(self, state: str) -> int:
        return sum(found == state for _name, found, _why in self.kernels.values())

    @property
    def tried(self) -> int:
        return len(self.kernels) - self.count("unreached")

    @property
    def right(self) -> bool:
        return self.state == "equal"

    def remarks(self) -> list[str]:
        return [] if self.right else [f"{self.state}: {self.why}"]

    def cells(self) -> list[str]:
        counts = [self.tried, *(self.count(state) for state in KERNEL_STATES)]
        return [self.name, *map(str, counts), self.state, f"{self.seconds:.0f} s"]


HEADERS = ["row", "kernels tried", *KERNEL_STATES, "row is", "took"]


def row_of(answered: dict[str, Any]) -> Row:
    """Make a Row from the result of ``asdict``."""
    return Row(**{**answered, "kernels": {digest: tuple(kernel) for digest, kernel in answered["kernels"].items()}})


def judge(name: str, answer: dict[str, Any]) -> Row:
    """Make a Row from the answer of its process."""
    artifacts = [graph for graph in answer.get("graphs", []) if graph[1] == "hit"]
    others = [graph for graph in answer.get("graphs", []) if graph[1] != "hit"]
    kernels = answer.get("kernels", {})
    why = answer.get("error", "")
    ended = False
    if answer.get("launches") or answer.get("strangers"):
        # The device computes nothing, so an equal result proves nothing.
        state, why = "launched", f"launched and not interpreted: {answer['launches']}; unknown: {answer['strangers']}"
    elif answer.get("eager_error"):
        state, why = "no row", answer["eager_error"]
    elif any(ADDRESSES in kernel["error"] for kernel in kernels.values()):
        state = "wrong"
    elif answer.get("different"):
        state, why = "wrong", "; ".join(answer["different"])
    elif others or not artifacts:
        answered = "; ".join(dict.fromkeys(str(graph[2] or graph[0]) for graph in others)) or "no graph"
        state, why = "no artifact", f"{answered} ({why})" if why else answered
        # Drop kernels that no artifact has: the client compiled them.
        kernels = {digest: kernel for digest, kernel in kernels.items() if kernel["brought"]}
    elif why:
        state = "stopped"
    else:
        state, ended = "equal", True
    row = Row(name, state, why, seconds=answer.get("seconds", 0.0))
    for digest, kernel in kernels.items():
        row.kernels[digest] = (kernel["name"], *_of_kernel(kernel, ended, state))
        row.programs += kernel["programs"]
        row.brought += [digest] if kernel["brought"] else []
    return row


def _of_kernel(kernel: dict[str, Any], ended: bool, row: str) -> tuple[str, str]:
    if kernel["error"]:
        return ("wrong" if ADDRESSES in kernel["error"] else "not runnable"), kernel["error"]
    if not kernel["runs"]:
        return "unreached", ""
    if not (kernel["programs"] and kernel["stored"]):
        return "not runnable", "it ran and stored nothing"
    if row == "launched":
        return "not runnable", "launched, not by its wrapper in Python"
    return "equal" if ended else "wrong" if row == "wrong" else "stopped", ""


def examine(names: Sequence[str], say: Say) -> Iterator[Row]:
    """Run the rows on one host with a made-up device. For each lot of LOT rows, compiles the rows and then interprets
    them.
    """
    with fresh_host() as host:
        host.start_daemon()
        for begin in range(0, len(names), LOT):
            lot = names[begin : begin + LOT]
            made = _run(host, lot, lambda text: say(f"compile:   {text}"), interpret=False)
            answered = _run(host, lot, lambda text: say(f"interpret: {text}"), interpret=True)
            for name in lot:
                row = judge(name, answered[name])
                if row.state == "no artifact" and made[name].get("error"):
                    row.why += f" (to compile it: {made[name]['error']})"
                yield row


def _run(host: Host, names: Sequence[str], say: Say, *, interpret: bool) -> dict[str, dict[str, Any]]:
    """Return the program's answer for each row."""
    found: dict[str, dict[str, Any]] = {}
    log = host.root / "program.log"
    commands = functools.partial(command, host, interpret=interpret)
    for name, answer in run_rows(names, commands, log, ROW_LIMIT_S):
        ended = f"the process ended: {' '.join(log.read_text()[-400:].split())}"
        found[name] = answer or {"error": ended}
        answered = _progress(name, answer, interpret) if answer else f"{name}: {ended}"
        say(f"{len(found)}/{len(names)} {answered}")
    return found


def _progress(name: str, answer: dict[str, Any], interpret: bool) -> str:
    if not interpret:
        states = [f"{graph[0]} by {graph[1]} {graph[2]}".strip() for graph in answer["graphs"]]
        return f"{name}: {', '.join(states)} {answer['error']} {answer['seconds']:.0f} s"
    row = judge(name, answer)
    counts = ", ".join(f"{row.count(state)} {state}" for state in KERNEL_STATES if row.count(state))
    return f"{name}: {row.state}; {counts or 'no kernel'}; {row.seconds:.0f} s {row.why[:300]}"


def command(host: Host, names: Sequence[str], *, interpret: bool) -> Command:
    """Return the command of the program for these rows."""
    # The interpreter gets its own Inductor cache. With a shared cache, graphs without an artifact could come from that
    # cache.
    cache = str(host.root / "interpreted")
    interpreted = {"TRITON_INTERPRET": "1", "PRECOMPILED_MODE": "lookup", "TORCHINDUCTOR_CACHE_DIR": cache}
    extra = interpreted if interpret else {}
    spec = {"rows": list(names), "interpret": interpret}
    return with_precompiled(host.command(spec, hook=True, extra=extra, program="interpreter.program"))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.interpreter",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--torch", default="2.15.0", metavar="VERSION", help="whose CUDA build (2.15.0)")
    parser.add_argument("--device", default="h100", metavar="KIND", help="the made-up GPU (h100)")
    add_only(parser, "rows with this word")
    add_every(parser)
    add_files(
        parser,
        json="write each row there; those that it has are not run again",
        read="run nothing: such a file has what was found",
        docs="tables of docs/reference/benchmarks.md",
    )
    arguments = parser.parse_args()
    if not arguments.read and not os.environ.get("CUDA_MADE_UP"):
        return _on_made_up(arguments.torch, arguments.device)

    def measure(say: Say) -> Report:
        rows = [row_of(answered) for record in read_records(arguments) for answered in record]
        for row in [] if arguments.read else examine(_names(parser, arguments, rows), say):
            rows.append(row)
            if arguments.json:
                arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
        return report(rows)

    return run_table(arguments, measure, width=170, mark="make interpreter ARGS=--docs")


def report(rows: Sequence[Row]) -> Report:
    found = report_rows(HEADERS, rows, passed=is_right(rows))
    totals, reasons = _totals(rows), _reasons(rows)
    found.tables += [(TOTALS, totals), (["why", "kernels or rows"], reasons)]
    found.parts = [_sentence(totals[-1])]
    return found


def _sentence(totals: Sequence[str]) -> str:
    """Return the last row of the totals as a sentence for the docs."""
    _, rows, equal, wrong, no_result, kernels, launchers, tried, *states = totals
    counts = ", ".join(f"{number} {state}" for number, state in zip(states, KERNEL_STATES, strict=True))
    return (
        f"{rows} rows: {equal} equal, {wrong} wrong, {no_result} without a result.\n"
        f"{kernels} Triton kernels, {launchers} with a launcher, {tried} tried: {counts}."
    )


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
    """Run this command again in the environment with the CUDA build, on a host with the device."""
    sys.path.insert(0, str(ROOT / "tests" / "versions"))
    environments = import_module("environments")

    print("NOT ON A GPU: the device is made up, its kernels are run by Triton's interpreter.", flush=True)
    try:
        python = environments.python_of(version)
    except environments.Unavailable as error:
        print(f"torch {version}: {error}")
        return 1
    return run_on_made_up_gpu("interpreter", str(python), device)


def _names(parser: argparse.ArgumentParser, arguments: argparse.Namespace, known_rows: Sequence[Row]) -> list[str]:
    """Return the names of the rows that --only and --every select, without those that are already in ``known_rows``."""
    from benchmarks.interpreter.rows import rows

    known = rows()
    wanted = [word for item in arguments.only or [] for word in item.split(",")]
    if unknown := [word for word in wanted if not any(word in row.split() for row in known)]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [row for row in known if not wanted or set(wanted) & set(row.split())][:: arguments.every]
    return [name for name in chosen if name not in {row.name for row in known_rows}]


def _kernels(rows: Sequence[Row]) -> dict[str, tuple[str, str, str]]:
    """Return the distinct kernels. A kernel in several rows gets the first of its states in the order of ``worst``."""
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
            len(part),
            equal,
            wrong,
            len(part) - equal - wrong,
            len(kernels),
            len({digest for row in part for digest in row.brought}),
            len(kernels) - counts["unreached"],
            *counts.values(),
        )
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
