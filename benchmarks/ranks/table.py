"""Each case by torchrun, on one host: eager, with nothing cached, and started anew."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import PACKAGES, BenchmarkError, Host, fresh_host, output_of
from benchmarks.models.compare import differences, unlike
from benchmarks.ranks import CASES
from precompiled import wire
from precompiled.client import ask

WAIT_S = 600.0
HANGS_S = 900.0
# A step's weights have the rounding of all steps before it: in ten times the noise of one step.
OF_LARGEST_GRADIENT = 1e-5
RUNS = ("first", "second")
BY_DAEMON = ("swap", "hit", "package")


@dataclass
class Row:
    """One case. Counts are those of all ranks, added up, in the first run and in the second."""

    name: str
    kind: str
    about: str
    ranks: int
    graphs: list[int] = field(default_factory=list)
    served: list[int] = field(default_factory=list)  # of them, compiled by the daemon
    compiled: list[int] = field(default_factory=list)  # by the daemon
    of_one_rank: int = 0  # the most graphs that a rank had in the first run
    traced: list[int] = field(default_factory=list)  # frames that Dynamo traced
    first_s: list[float] = field(default_factory=list)  # the slowest rank's first step
    reasons: dict[str, int] = field(default_factory=dict)  # of graphs that were not served, in both runs
    kept_from_packages: dict[str, int] = field(default_factory=dict)  # of functions, in the first run
    different: list[str] = field(default_factory=list)  # from eager, and from plain torch.compile
    as_plain: bool = False  # different from eager as plain torch.compile is
    error: str = ""

    @property
    def right(self) -> bool:
        return not (self.error or self.different)

    def cells(self) -> list[str]:
        equal = "error" if self.error else "no" if self.different else "as plain" if self.as_plain else "yes"
        shares = " ".join(f"{served}/{graphs}" for served, graphs in zip(self.served, self.graphs, strict=True))
        reasons = Counter(self.reasons) + Counter(self.kept_from_packages)
        return [
            self.name, str(self.ranks), equal, shares, " ".join(map(str, self.compiled)), str(self.of_one_rank),
            " ".join(map(str, self.traced)), " ".join(f"{seconds:.1f}" for seconds in self.first_s),
            ", ".join(f"{reason} {number}" for reason, number in sorted(reasons.items())),
        ]  # fmt: skip

    def remarks(self) -> list[str]:
        return [*([self.error] if self.error else []), *self.different[:4]]


HEADERS = [
    "case", "ranks", "equal to eager", "graphs served, in two starts", "compiled", "graphs of one rank",
    "frames traced", "first step, s", "reasons",
]  # fmt: skip


def examine(names: Sequence[str], say: Say) -> list[Row]:
    """The cases one after the other, all by one daemon."""
    rows = []
    with fresh_host() as host:
        host.start_daemon()
        for name in names:
            case = CASES[name]
            row = Row(name, case.kind, case.about, case.ranks)
            try:
                _examine(host, row)
            except BenchmarkError as error:
                row.error = str(error)
            rows.append(row)
            say(f"{len(rows)}/{len(names)} {'  '.join(row.cells())}")
    return rows


def _examine(host: Host, row: Row) -> None:
    start(host, row, "eager", hook=False, extra={"TORCH_COMPILE_DISABLE": "1"})
    for run in RUNS:
        before = compiled(host)
        ranks = start(host, row, run, hook=True, extra=PACKAGES)
        row.compiled.append(compiled(host) - before)
        row.graphs.append(sum(len(found["reports"]) for found in ranks))
        row.of_one_rank = row.of_one_rank or max(len(found["reports"]) for found in ranks)
        row.traced.append(sum(found["traced"] for found in ranks))
        row.first_s.append(max(found["seconds"][0] for found in ranks))
        served = 0
        for found in ranks:
            if not found["waited"]:
                raise BenchmarkError(f"graphs were still pending after {WAIT_S:.0f} s")
            for report in found["reports"]:
                if report["state"] == "compiled" and report["source"] in BY_DAEMON:
                    served += 1
                else:
                    reason = report["reason"] or report["state"]
                    row.reasons[reason] = row.reasons.get(reason, 0) + 1
            if run == RUNS[0]:
                kept = Counter(item["reason"] for item in found["functions"] if item["reason"])
                row.kept_from_packages = dict(Counter(row.kept_from_packages) + kept)
        row.served.append(served)
    off = {run: _differences(host, row, run, "eager") for run in RUNS}
    if any(off.values()):
        start(host, row, "plain", hook=False, extra={})
        if _differences(host, row, "plain", "eager"):
            off = {run: _differences(host, row, run, "plain") for run in RUNS}
            row.as_plain = not any(off.values())
    row.different = [f"{run} start, {text}" for run, texts in off.items() for text in texts]


def compiled(host: Host) -> int:
    reply: wire.StatsReply = ask.request(host.settings, wire.Stats(), WAIT_S)
    return reply.compiled


def _differences(host: Host, row: Row, run: str, expected: str) -> list[str]:
    found = []
    for rank in range(row.ranks):
        got, wanted = (torch.load(f"{_file(host, row, name)}-{rank}.pt") for name in (run, expected))
        found += [f"rank {rank}: {len(got)} steps, not {len(wanted)}"] if len(got) != len(wanted) else []
        for number, (left, right) in enumerate(zip(got, wanted, strict=False)):
            half = CASES[row.name].half
            off = unlike(left, right) if half else differences(left, right, of_largest=OF_LARGEST_GRADIENT)
            found += [f"rank {rank}, step {number}: {text}" for text in off]
    return found


def start(host: Host, row: Row, run: str, *, hook: bool, extra: dict[str, str]) -> list[dict[str, Any]]:
    """What each rank says."""
    file = _file(host, row, run)
    spec = {"name": row.name, "values": str(file), "answer": str(file), "wait_s": WAIT_S if hook else 0.0}
    # What libraries leave behind goes with the host.
    temporary = host.root / "temporary"
    temporary.mkdir(exist_ok=True)
    command = host.command(spec, hook=hook, extra={**extra, "TMPDIR": str(temporary)}, program="ranks.program")
    launcher = [
        sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
        "--nproc-per-node", str(row.ranks),
    ]  # fmt: skip
    output_of({**command, "argv": [*launcher, *command["argv"][1:]]}, HANGS_S)
    return [json.loads(Path(f"{file}-{rank}.json").read_text()) for rank in range(row.ranks)]


def _file(host: Host, row: Row, run: str) -> Path:
    return host.root / f"{row.name}-{run}"
