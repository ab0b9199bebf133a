"""Checks for each architecture: the daemon compiles its graphs, the next process has cache hits, and values equal
eager's.

`make architectures` (`python -m benchmarks.architectures`). Exits 1 if a row is not right.

With `--made-up KIND` and a CUDA build of torch, the models run on a made-up GPU (docs/explanation/made-up-cuda.md).
Kernels do not run on this GPU, so no value is compared. A row is right if the second process loads only cubins for that
GPU, and starts no other process. Sizes that a kernel computes are wrong on this GPU. After a wrong size, the first
process may not call a later graph again. Such a graph may lack a hit (``idle`` in --json).

With `--in-pieces`, models have six layers instead of two. The first step waits for compiled code, and graphs with equal
layers run this step in pieces.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.architectures.rows import ArchitectureRow, Name, build_parser, choose_rows, report_architectures
from benchmarks.harness.answers import run_rows
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import IN_PIECES, Command, Host, fresh_host, with_precompiled
from benchmarks.harness.made_up import run_on_made_up_gpu
from benchmarks.harness.result import list_counts
from benchmarks.harness.state import WAIT_S
from benchmarks.harness.table_command import Report, run_table
from precompiled.made_up_cuda import activate
from precompiled.made_up_cuda.kinds import KINDS

# The timeout of a row, in seconds. Rows take far less time, even on a loaded 2-core machine.
ROW_LIMIT_S = 900.0
SHOWN = 4  # differences shown for a row


@dataclass
class Row(ArchitectureRow):
    """A row's model runs in a process with empty caches, then in a second process."""

    graphs: int = 0
    by_daemon: int = 0  # graphs among ``graphs`` that the daemon compiled
    # maps a reason to the number of graphs that the daemon did not compile
    rest: dict[str, int] = field(default_factory=dict)
    second_graphs: int = 0
    hits: int = 0
    compiles: int = 0  # graphs that the two clients compiled themselves
    different: list[str] = field(default_factory=list)  # values that differ from eager
    errors: list[str] = field(default_factory=list)  # why the model could not be examined
    messages: list[str] = field(default_factory=list)  # precompiled's messages about the graphs in ``rest``
    seconds: float = 0.0
    target: str = ""  # the made-up GPU's architecture; if set, no value is compared
    idle: int = 0  # graphs of the first process that were compiled but not called again
    in_pieces: int | None = None  # graphs whose first step was compared with eager in pieces; None: without --in-pieces
    # Maps an architecture to a number of cubins: those that the second process loaded for this row and for no earlier
    # row.
    cubins: dict[str, int] = field(default_factory=dict)
    known_cubins: bool = False  # an earlier row of this model loaded cubins, perhaps all that this row needs
    started: list[str] = field(default_factory=list)  # processes that the second process started

    @property
    def equal(self) -> bool:
        return not self.errors and not self.different

    @property
    def right(self) -> bool:
        # On a made-up GPU, a size that a kernel computes is wrong. After a wrong size, the first process may not call a
        # later graph again. ``idle`` counts such graphs.
        served = self.graphs == self.by_daemon and self.second_graphs == self.hits == self.graphs - self.idle > 0
        loaded = set(self.cubins) == {self.target} or (self.known_cubins and not self.cubins)
        made = not self.target or (loaded and not self.started)
        return self.equal and served and made and self.compiles == 0

    def cells(self) -> list[str]:
        share = f"{self.by_daemon} ({self.by_daemon / self.graphs:.0%})" if self.graphs else "none"
        compared = "error" if self.errors else "no" if self.different else "not compared" if self.target else "yes"
        made = ", ".join(f"{number} {name}" for name, number in sorted(self.cubins.items()))
        return [
            self.architecture,
            self.kind,
            self.task,
            str(self.graphs),
            share,
            list_counts(self.rest),
            f"{self.hits} of {self.second_graphs}",
            compared,
            str(self.compiles),
            *([made or "none new", str(len(self.started))] if self.target else []),
            *([] if self.in_pieces is None else [str(self.in_pieces)]),
            f"{self.seconds:.0f} s",
        ]

    def remarks(self) -> list[str]:
        more = len(self.different) - SHOWN
        shown = [*self.different[:SHOWN], *([f"and {more} more differences (--json has them)"] if more > 0 else [])]
        return [*self.errors, *self.messages, *shown, *(f"started {text}" for text in self.started if self.target)]


def headers(target: str, *, in_pieces: bool) -> list[str]:
    """Return the table's headers. ``target``: the made-up GPU's architecture, or ""."""
    return [
        "architecture",
        "kind",
        "task",
        "graphs",
        "by the daemon",
        "the rest",
        "hit in the 2nd process",
        "equal to eager",
        "compiles in the client",
        *(["cubins in the 2nd process", "processes it started"] if target else []),
        *(["first step in pieces"] if in_pieces else []),
        "took",
    ]


def examine(
    names: Sequence[Name], say: Say, device: str = "cpu", target: str = "", *, in_pieces: bool = False
) -> list[Row]:
    """Run the rows in a process with empty caches, then in a second one. Both use one daemon."""
    depth = {"ZOO_LAYERS": "6"} if in_pieces else {}
    tiers = {**depth, **IN_PIECES, "PRECOMPILED_MODE": "wait"} if in_pieces else {}
    with fresh_host() as host:
        host.start_daemon()
        first = _run(host, names, device, "first", tiers, lambda text: say(f"nothing cached: {text}"))
        second = _run(host, names, device, "second", depth, lambda text: say(f"next process:   {text}"))
    rows = [_row(name, first[name], second[name], target) for name in names]
    if in_pieces:
        for row, name in zip(rows, names, strict=True):
            row.in_pieces = first[name].get("in_pieces", 0)
    for index, row in enumerate(rows):
        row.known_cubins = any(other.cubins for other in rows[:index] if other.architecture == row.architecture)
    return rows


def _run(
    host: Host, names: Sequence[Name], device: str, caches: str, variables: Mapping[str, str], say: Say
) -> dict[Name, dict[str, Any]]:
    """Return what the program found for each row.

    ``caches``: the folder of Inductor's and Triton's caches on a GPU. Each process has its own folder, so that the
    second process takes its kernels from the artifacts.
    """
    found: dict[Name, dict[str, Any]] = {}
    own = dict(variables)
    if device != "cpu":
        folder = host.root / caches
        own |= {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}

    def command(waiting: Sequence[Name]) -> Command:
        spec = {"rows": waiting, "wait_s": WAIT_S, "device": device}
        return with_precompiled(host.command(spec, hook=True, program="architectures.program", extra=own))

    errors = host.root / "program.log"
    for name, answer in run_rows(names, command, errors, ROW_LIMIT_S):
        found[name] = answer or {"error": f"the process ended:\n{errors.read_text()[-2000:]}"}
        say(_progress(name, found[name], len(found), len(names)))
    return found


def _progress(name: Name, answer: dict[str, Any], done: int, of: int) -> str:
    reports = answer.get("reports", [])
    states = Counter(f"{report['state']} by {report['source']}" for report in reports)
    shown = ", ".join(f"{number} {state}" for state, number in states.items()) or "no graph"
    verdict = "error" if answer["error"] else "different" if answer["different"] else "equal"
    return f"{done}/{of} {' '.join(name)}: {shown}; {verdict}; {answer.get('seconds', 0.0):.0f} s"


def _row(name: Name, first: dict[str, Any], second: dict[str, Any], target: str) -> Row:
    architecture, task = name
    row = Row(architecture, task, target=target)
    for title, answer in (("nothing cached", first), ("next process", second)):
        if answer["error"]:
            row.errors.append(f"{title}: {answer['error']}")
        elif not answer["waited"]:
            row.errors.append(f"{title}: graphs were still pending after {WAIT_S:.0f} s")
        if idle := answer.get("idle"):
            (row.messages if target else row.errors).append(f"{title}: never ran compiled: {', '.join(idle)}")
        row.different += [f"{title}, {text}" for text in answer.get("different", [])]
        row.compiles += answer.get("compiles", 0)
        row.seconds += answer.get("seconds", 0.0)
    row.graphs, row.idle = len(first.get("reports", [])), len(first.get("idle", []))
    for report in first.get("reports", []):
        # A hit counts as compiled by the daemon, because the daemon compiled the graph for an earlier row.
        if report["state"] == "compiled" and report["source"] in ("swap", "hit"):
            row.by_daemon += 1
            continue
        reason = report["reason"] or report["state"]
        row.rest[reason] = row.rest.get(reason, 0) + 1
        row.messages.append(f"{report['name']}: {report['state']}, {reason}: {report['message']}")
    row.second_graphs = len(second.get("reports", []))
    row.cubins, row.started = second.get("cubins", {}), second.get("started", [])
    row.hits = sum(report["source"] == "hit" for report in second.get("reports", []))
    return row


def main() -> int:
    parser = build_parser("architectures", __doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the models are")
    parser.add_argument("--made-up", choices=KINDS, metavar="KIND", help=f"on a made-up GPU ({', '.join(KINDS)})")
    parser.add_argument("--in-pieces", action="store_true", help="also compare a first step in pieces")
    arguments = parser.parse_args()
    names = choose_rows(parser, arguments)
    if arguments.made_up and not activate.is_active():
        return run_on_made_up_gpu("architectures", sys.executable, arguments.made_up)

    def measure(say: Say) -> Report:
        device, target = arguments.device, ""
        if arguments.made_up:
            kind = KINDS[arguments.made_up]
            device, target = "cuda", f"sm_{kind.major}{kind.minor}"
            say(f"A made-up {kind.name}: no kernel runs, and no value is compared.")
        in_pieces: bool = arguments.in_pieces
        rows = examine(names, say, device, target, in_pieces=in_pieces)
        return report_architectures(headers(target, in_pieces=in_pieces), rows)

    return run_table(arguments, measure)
