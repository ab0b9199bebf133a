"""Each program by four processes: eager, with nothing cached, the next one, and the one after that."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import PACKAGES, BenchmarkError, Host, fresh_host
from benchmarks.models.compare import differences
from benchmarks.programs import PROGRAMS
from benchmarks.programs.state import WAIT_S

CLIENTS = 2
# A step's weights have the rounding of all steps before it: in ten times the noise of one step.
OF_LARGEST_GRADIENT = 1e-5
RUNS = ("first", "second", "third")
_KILLED = re.compile(r"ended with -\d+")  # by a signal
BY_DAEMON = ("swap", "hit", "package")


@dataclass
class Row:
    """One program. Counts are of the runs in order: nothing cached, the next process, the one after that."""

    name: str
    library: str
    about: str
    absent: tuple[str, ...] = ()  # modules without which it was not run
    graphs: list[int] = field(default_factory=list)
    served: list[int] = field(default_factory=list)  # of them, compiled by the daemon
    packages: list[int] = field(default_factory=list)  # of them, not even traced
    traced: list[int] = field(default_factory=list)  # frames that Dynamo traced
    first_s: list[float] = field(default_factory=list)  # the first step
    reasons: dict[str, int] = field(default_factory=dict)  # of graphs that were not served, in all runs
    kept_from_packages: dict[str, int] = field(default_factory=dict)  # of functions, in the first run
    different: list[str] = field(default_factory=list)  # from eager, and from plain torch.compile
    as_plain: bool = False  # different from eager as plain torch.compile is
    error: str = ""

    @property
    def equal(self) -> bool:
        """As far as plain torch.compile is: it may die of the code that Inductor makes of it."""
        return self.as_plain if self.error else not self.different

    @property
    def right(self) -> bool:
        """Equal, and every graph served in every run that came to its end."""
        return self.equal and self.graphs == self.served and (bool(self.error) or min(self.graphs, default=0) > 0)

    def cells(self) -> list[str]:
        if self.absent:
            return [self.name, self.library, "", "", "", "", "", f"not run: no {', '.join(self.absent)}"]
        alike = "as plain" if self.as_plain else "yes"
        equal = "no" if self.different else alike
        if self.error:
            equal = "dies, as plain" if self.as_plain else "error"
        shares = " ".join(f"{served}/{graphs}" for served, graphs in zip(self.served, self.graphs, strict=True))
        reasons = [f"{reason} {number}" for reason, number in sorted(self.reasons.items())]
        reasons += [f"{reason} {number}" for reason, number in sorted(self.kept_from_packages.items())]
        return [
            self.name, self.library, shares, " ".join(map(str, self.packages)), " ".join(map(str, self.traced)), equal,
            " ".join(f"{seconds:.1f}" for seconds in self.first_s), ", ".join(reasons),
        ]  # fmt: skip

    def remarks(self) -> list[str]:
        return [*([self.error] if self.error else []), *self.different[:4]]


HEADERS = [
    "program", "library", "graphs served, in three runs", "of them from packages", "frames traced", "equal to eager",
    "first step, s", "reasons",
]  # fmt: skip


def examine(names: Sequence[str], say: Say) -> list[Row]:
    """All programs by one daemon, two at a time: most of their seconds are imports."""
    done = itertools.count(1)

    def one(name: str) -> Row:
        row = Row(name, PROGRAMS[name].library, PROGRAMS[name].about)
        row.absent = tuple(module for module in PROGRAMS[name].needs if find_spec(module) is None)
        if not row.absent:
            try:
                _examine(host, row)
            except BenchmarkError as error:
                row.error = str(error)
                row.as_plain = bool(_KILLED.search(row.error)) and _dies(host, row)
        say(f"{next(done)}/{len(names)} {'  '.join(row.cells())}")
        return row

    with fresh_host() as host:
        host.start_daemon()
        with ThreadPoolExecutor(CLIENTS) as clients:
            return list(clients.map(one, names))


def _examine(host: Host, row: Row) -> None:
    expected = _values(host, row, "eager", hook=False, extra={"TORCH_COMPILE_DISABLE": "1"})
    for number, run in enumerate(RUNS):
        found = _run(host, row, run, hook=True, extra=PACKAGES)
        if not found["waited"]:
            raise BenchmarkError(f"graphs were still pending after {WAIT_S:.0f} s")
        sources = Counter(report["source"] for report in found["reports"] if report["state"] == "compiled")
        row.graphs.append(len(found["reports"]))
        row.served.append(sum(sources[source] for source in BY_DAEMON))
        row.packages.append(sources["package"])
        row.traced.append(found["traced"])
        row.first_s.append(found["seconds"][0])
        for report in found["reports"]:
            if report["state"] != "compiled" or report["source"] not in BY_DAEMON:
                reason = report["reason"] or report["state"]
                row.reasons[reason] = row.reasons.get(reason, 0) + 1
        if number == 0:
            row.kept_from_packages = dict(Counter(item["reason"] for item in found["functions"] if item["reason"]))
        got = torch.load(_file(host, row, run))
        row.different += [f"{run} run, {text}" for text in _differences(got, expected)]
    if row.different:
        # Compiled code may differ from eager by more than rounding where eager itself is no measure (chaos, ties).
        plain = _values(host, row, "plain", hook=False, extra={})
        if _differences(plain, expected):
            swapped = _values(host, row, "swapped", hook=False, extra={}, eager_steps=1)
            runs = [torch.load(_file(host, row, run)) for run in RUNS]
            row.different = [
                text
                for values in runs
                if _differences(values, swapped)  # as the first run: eager, then compiled
                for text in _differences(values, plain)
            ]
            row.as_plain = not row.different


def _dies(host: Host, row: Row) -> bool:
    """Whether the program is ended by a signal with plain torch.compile, too: Inductor's code may be what ends it."""
    try:
        _run(host, row, "plain", hook=False, extra={})
    except BenchmarkError as error:
        return bool(_KILLED.search(str(error)))
    return False


def _differences(got: Sequence[Any], expected: Sequence[Any]) -> list[str]:
    found = [] if len(got) == len(expected) else [f"{len(got)} steps, not {len(expected)}"]
    for number, (left, right) in enumerate(zip(got, expected, strict=False)):
        found += [f"step {number}: {text}" for text in differences(left, right, of_largest=OF_LARGEST_GRADIENT)]
    return found


def _values(
    host: Host, row: Row, run: str, *, hook: bool, extra: dict[str, str], eager_steps: int = 0
) -> list[Any]:
    _run(host, row, run, hook=hook, extra=extra, eager_steps=eager_steps)
    values: list[Any] = torch.load(_file(host, row, run))
    return values


def _run(
    host: Host, row: Row, run: str, *, hook: bool, extra: dict[str, str], eager_steps: int = 0
) -> dict[str, Any]:
    spec = {
        "name": row.name, "values": str(_file(host, row, run)), "wait": hook,
        "eager_steps": eager_steps,
    }  # fmt: skip
    # What libraries leave behind goes with the host.
    temporary = host.root / "temporary"
    temporary.mkdir(exist_ok=True)
    return host.run(spec, hook=hook, extra={**extra, "TMPDIR": str(temporary)}, program="programs.program")


def _file(host: Host, row: Row, run: str) -> Path:
    return host.root / f"{row.name}-{run}.pt"
