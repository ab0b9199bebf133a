"""Measures packages: a table of architectures, and the second process's first call next to plain torch.compile's warm
start.

`python -m benchmarks.packages` (the table), `... --first-call`, `... --recording`, `... --noticing` (the measures).
Exits 1 if a row is not right (a frame was traced in the second process, or a value differs from eager), or if the goal
is missed.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.architectures.rows import ArchitectureRow, Name, build_parser, choose_rows, report_architectures
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import Host
from benchmarks.harness.table_command import MeasuredRow, Report, measure_rows, run_table
from benchmarks.packages.first_call import GOAL, ON, first_call, recording
from benchmarks.packages.noticing import noticing


@dataclass
class Row(ArchitectureRow, MeasuredRow):
    """One architecture. One process records the package, the next one uses it, and a third one audits it."""

    frames: int = 0  # frames that Dynamo handled in the first process
    compiled: int = 0
    traced: int = 0  # frames that Dynamo traced in the second process
    audited: int = 0  # frames that the third process traced with the same result as the package
    guards: int = 0
    first_s: float = 0.0  # seconds of the first call in the second process
    traced_s: float = 0.0  # seconds of the first call with packages off: the artifacts exist, but Dynamo traces
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        return not self.error and not self.different and self.traced == 0 and self.compiled > 0

    def cells(self) -> list[str]:
        return [
            self.architecture,
            self.kind,
            self.task,
            f"{self.compiled} of {self.frames}",
            str(self.guards),
            str(self.traced),
            str(self.audited),
            "error" if self.error else "no" if self.different else "yes",
            f"{self.first_s:.2f} s",
            f"{self.traced_s:.2f} s",
            f"{self.first_s / self.traced_s:.2f}" if self.traced_s else "",
            ", ".join(self.reasons) or "",
        ]


HEADERS = [
    "architecture",
    "kind",
    "task",
    "frames compiled",
    "guards",
    "frames traced in the 2nd process",
    "frames audited in the 3rd",
    "equal to eager",
    "its first call",
    "traced, artifacts there",
    "ratio",
    "reasons",
]


def examine(names: Sequence[Name], say: Say) -> list[Row]:
    return measure_rows([Row(*name) for name in names], _examine, say)


def _examine(host: Host, row: Row) -> None:
    first = _run(host, row, ON)
    second = _run(host, row, ON)
    third = _run(host, row, {**ON, "PRECOMPILED_PACKAGE_AUDIT": "1"})
    plain = _run(host, row, {"PRECOMPILED_MODE": "wait"})
    row.frames = len(first["functions"])
    row.compiled = sum(bool(function["guards"]) for function in first["functions"])
    row.guards = sum(function["guards"] for function in first["functions"])
    # The sum of Dynamo's counters of frames and of graphs.
    row.traced = second["traced"] + second["graphs"]
    row.audited = sum(function["state"] == "audited" for function in third["functions"])
    row.different = [*first["different"], *second["different"]]
    row.different += [function["message"] for function in third["functions"] if function["reason"] == "package-audit"]
    row.first_s, row.traced_s = second["seconds"][0], plain["seconds"][0]
    row.reasons = dict(Counter(function["reason"] for function in first["functions"] if function["reason"]))


def _run(host: Host, row: Row, variables: dict[str, str]) -> dict[str, Any]:
    spec = {"architecture": row.architecture, "task": row.task}
    return host.run(spec, hook=True, extra=variables, program="packages.program")


def main() -> int:
    parser = build_parser("packages", __doc__)
    parser.add_argument("--first-call", action="store_true", help="the first call with a package, not the table")
    parser.add_argument("--recording", action="store_true", help="what recording costs the first call, not the table")
    parser.add_argument("--noticing", action="store_true", help="what it costs to notice calls during a trace")
    parser.add_argument("--quick", action="store_true", help="a small model for a measure: no figure to be quoted")
    arguments = parser.parse_args()
    names = choose_rows(parser, arguments)

    def measure(say: Say) -> Report:
        for wanted, ratios_of, what, goal in (
            (arguments.noticing, noticing, "a trace in which calls are noticed, over one without", None),
            (arguments.recording, recording, "first call that records, over one that does not", None),
            (arguments.first_call, first_call, "first call beyond a step, package / torch.compile warm", GOAL),
        ):
            if wanted:
                ratios = ratios_of(arguments.quick, say)
                median = statistics.median(ratios)
                said = f"{min(ratios):.3f} to {max(ratios):.3f}, {len(ratios)} pairs"
                said = said if goal is None else f"goal {goal}; {said}"
                return Report(goal is None or median <= goal, f"{what}: {median:.3f} ({said}).")
        return report_architectures(HEADERS, examine(names, say))

    return run_table(arguments, measure)
