"""A measure's result (its samples and their goal). Writes results to a table and to a file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import textwrap
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness.hosts import ROOT

RESULTS = ROOT / "benchmarks" / "results"


@dataclass
class Result:
    """One figure. The figure's goal is met if the median of its samples is at most ``goal`` (None: the figure has no
    goal).

    ``raw``: the values from which the samples were computed.
    """

    measure: str  # the letter of the measure
    title: str
    unit: str  # the unit of the samples; "" for a ratio
    goal: float | None
    samples: list[float] = field(default_factory=list)
    raw: dict[str, list[float]] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def met(self) -> bool:
        return self.goal is None or self.median <= self.goal

    def row(self) -> list[str]:
        unit = self.unit and f" {self.unit}"
        verdict = "" if self.goal is None else "met"
        if self.goal is not None and not self.met:
            verdict = f"missed by {self.median - self.goal:.3g}{unit}"
        return [
            self.measure,
            self.title,
            "" if self.goal is None else f"≤ {self.goal:g}{unit}",
            f"{self.median:.3g}{unit}",
            f"{min(self.samples):.3g} .. {max(self.samples):.3g}",
            str(len(self.samples)),
            verdict,
        ]

    def raw_row(self) -> list[list[str]]:
        return [
            [self.measure, name, f"{statistics.median(values):.3f}", f"{min(values):.3f} .. {max(values):.3f}"]
            for name, values in self.raw.items()
            if values
        ]


HEADERS = ["", "measure", "goal", "median", "min .. max", "n", ""]
RAW_HEADERS = ["", "from", "median", "min .. max"]


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the table in Markdown."""
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def list_by_group(items: Sequence[tuple[str, str]]) -> str:
    """Return a Markdown list with one point per group. ``items``: pairs of a group and a text."""
    groups: dict[str, list[str]] = {}
    for group, text in items:
        groups.setdefault(group, []).append(text)
    points = [f"- {group}: {'. '.join(texts)}." for group, texts in groups.items()]
    return "\n".join(textwrap.fill(point, 120, subsequent_indent="  ", break_on_hyphens=False) for point in points)


def write_part(command: str, parts: Sequence[str], page: str = "reference/benchmarks.md") -> None:
    """In a page of docs/, replace the part between the two marks of ``command``."""
    begin, end = f"<!-- made by {command} -->", "<!-- end -->"
    path = ROOT / "docs" / page
    before, _, rest = path.read_text().partition(begin)
    path.write_text(before + "\n\n".join([begin, *parts, end]) + rest.partition(end)[2])


@dataclass
class Table:
    title: str
    headers: list[str]
    rows: list[list[str]] = field(default_factory=list)

    def without(self, headers: Collection[str]) -> Table:
        """Return the table without these columns."""
        kept = [at for at, header in enumerate(self.headers) if header not in headers]
        return Table(self.title, [self.headers[at] for at in kept], [[row[at] for at in kept] for row in self.rows])

    def text(self) -> str:
        return f"**{self.title}**\n\n{markdown(self.headers, self.rows)}"


def machine() -> dict[str, Any]:
    """Return properties of the machine and of this checkout: cores, CPU, versions, load, commit."""
    import torch

    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(":")[2].strip() if names else cpu
    describe = ["git", "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # no git here
        commit = ""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "load": os.getloadavg()[0],
        "commit": commit,
    }


def describe_machine() -> str:
    """Return the sentence that docs/ prints before a table."""
    facts = machine()
    return f"On {facts['cores']} cores ({facts['cpu']}), load {facts['load']:.1f} at the end, {facts['commit']}:"


def list_counts(counts: Mapping[str, int]) -> str:
    """Each name with its count, sorted by name."""
    return ", ".join(f"{name} {number}" for name, number in sorted(counts.items()))


def spread(values: Sequence[float]) -> str:
    """Return the median, with the extremes if there are several values; "" for none."""
    if not values:
        return ""
    middle = f"{statistics.median(values):.3g}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.3g} .. {max(values):.3g})"


def save(found: dict[str, Any], quick: bool, name: str) -> Path:
    """Write ``found`` as JSON to benchmarks/results/ and return the file's path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / time.strftime(f"%Y%m%d-%H%M%S-{name}.json")
    path.write_text(json.dumps({"machine": machine(), "quick": quick, **found}, indent=1) + "\n")
    return path
