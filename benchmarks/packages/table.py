"""Each architecture by processes that record packages, use them, compare them, and have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.architectures.rows import Name
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import BenchmarkError, Host, fresh_host
from benchmarks.models.zoo import ARCHITECTURES
from benchmarks.packages.first_call import ON


@dataclass
class Row:
    """One architecture in training or inference: recorded by one process, used by the next, compared by a third."""

    architecture: str
    kind: str
    task: str
    frames: int = 0  # those that Dynamo met in the first process
    compiled: int = 0
    traced: int = 0  # frames in the second process
    audited: int = 0  # frames that the third process traced, with the same result as the package's
    guards: int = 0
    first_s: float = 0.0  # the first call in the second process
    traced_s: float = 0.0  # the same with packages off: the artifacts are there, Dynamo traces
    reasons: dict[str, int] = field(default_factory=dict)
    different: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def right(self) -> bool:
        return not self.error and not self.different and self.traced == 0 and self.compiled > 0

    def cells(self) -> list[str]:
        return [
            self.architecture, self.kind, self.task, f"{self.compiled} of {self.frames}", str(self.guards),
            str(self.traced), str(self.audited), "error" if self.error else "no" if self.different else "yes",
            f"{self.first_s:.2f} s", f"{self.traced_s:.2f} s",
            f"{self.first_s / self.traced_s:.2f}" if self.traced_s else "", ", ".join(self.reasons) or "",
        ]  # fmt: skip

    def remarks(self) -> list[str]:
        return [*([self.error] if self.error else []), *self.different[:4]]


HEADERS = [
    "architecture", "kind", "task", "frames compiled", "guards", "frames traced in the 2nd process",
    "frames audited in the 3rd", "equal to eager",
    "its first call", "traced, artifacts there", "ratio", "reasons",
]  # fmt: skip


def examine(names: Sequence[Name], say: Say) -> list[Row]:
    rows = []
    with fresh_host() as host:
        host.start_daemon()
        for number, (name, task) in enumerate(names, 1):
            row = Row(name, ARCHITECTURES[name].kind, task)
            try:
                _examine(host, row)
            except BenchmarkError as error:
                row.error = str(error)
            rows.append(row)
            say(f"{number}/{len(names)} {' '.join(row.cells())}")
    return rows


def _examine(host: Host, row: Row) -> None:
    first = _run(host, row, ON)
    second = _run(host, row, ON)
    third = _run(host, row, {**ON, "PRECOMPILED_PACKAGE_AUDIT": "1"})
    plain = _run(host, row, {"PRECOMPILED_MODE": "wait"})
    row.frames = len(first["functions"])
    row.compiled = sum(bool(function["guards"]) for function in first["functions"])
    row.guards = sum(function["guards"] for function in first["functions"])
    # Dynamo's own counters: of frames, and of graphs.
    row.traced = second["frames"].get("total", 0) + second["traced"]
    row.audited = sum(function["state"] == "audited" for function in third["functions"])
    row.different = [*first["different"], *second["different"]]
    row.different += [function["message"] for function in third["functions"] if function["reason"] == "package-audit"]
    row.first_s, row.traced_s = second["seconds"][0], plain["seconds"][0]
    row.reasons = dict(Counter(function["reason"] for function in first["functions"] if function["reason"]))


def _run(host: Host, row: Row, variables: dict[str, str]) -> dict[str, Any]:
    spec = {"architecture": row.architecture, "task": row.task}
    return host.run(spec, hook=True, extra=variables, program="packages.program")
