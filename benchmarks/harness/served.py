"""Rows that count, per run of a program, the graphs that precompiled served, and the reasons why it did not serve
others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.hosts import BenchmarkError
from benchmarks.harness.state import WAIT_S
from benchmarks.harness.table_command import MeasuredRow

BY_DAEMON = ("swap", "hit", "package")


def is_served(graph: Mapping[str, Any]) -> bool:
    return graph["state"] == "compiled" and graph["source"] in BY_DAEMON


def expect_served(graphs: Sequence[Mapping[str, Any]]) -> None:
    for graph in graphs:
        if not is_served(graph):
            raise BenchmarkError(f"a graph was not served: {graph}")


@dataclass(kw_only=True)
class ServedRow(MeasuredRow):
    """Each list has one number per run, in order: the sum over the processes of that run."""

    graphs: list[int] = field(default_factory=list)
    served: list[int] = field(default_factory=list)  # graphs among ``graphs`` that the daemon compiled
    traced: list[int] = field(default_factory=list)  # frames that Dynamo traced
    first_s: list[float] = field(default_factory=list)  # seconds of the slowest process's first step
    # maps a reason to the number of graphs that were not served, over all runs
    reasons: dict[str, int] = field(default_factory=dict)
    # maps a reason to the number of functions, in the first run
    kept_from_packages: dict[str, int] = field(default_factory=dict)
    as_plain: bool = False  # plain torch.compile differs from eager in the same way

    @property
    def shares(self) -> str:
        return " ".join(f"{served}/{graphs}" for served, graphs in zip(self.served, self.graphs, strict=True))

    @property
    def first_steps(self) -> str:
        return " ".join(f"{seconds:.1f}" for seconds in self.first_s)

    def add_run(self, processes: Sequence[Mapping[str, Any]]) -> None:
        """Count a run. Each process has the values of ``state.counted``, the ``seconds`` of its steps, and ``waited``
        (whether its graphs were ready in time).
        """
        if not all(process["waited"] for process in processes):
            raise BenchmarkError(f"graphs were still pending after {WAIT_S:.0f} s")
        reports = [report for process in processes for report in process["reports"]]
        others = [report for report in reports if not is_served(report)]
        if not self.graphs:
            functions = [function for process in processes for function in process["functions"]]
            self.kept_from_packages = dict(Counter(item["reason"] for item in functions if item["reason"]))
        self.graphs.append(len(reports))
        self.served.append(len(reports) - len(others))
        self.traced.append(sum(process["traced"] for process in processes))
        self.first_s.append(max(process["seconds"][0] for process in processes))
        self.reasons = dict(Counter(self.reasons) + Counter(report["reason"] or report["state"] for report in others))


def sum_graphs(rows: Sequence[ServedRow]) -> tuple[int, int]:
    """Return the number of all graphs and the number of served graphs."""
    return sum(sum(row.graphs) for row in rows), sum(sum(row.served) for row in rows)


def describe_counts(rows: Sequence[ServedRow], runs: str) -> str:
    """Return the sentence with the totals over all ``runs``."""
    graphs, served = sum_graphs(rows)
    return f"{runs} together had {graphs} graphs. {served} graphs ({served / max(graphs, 1):.1%}) were served."


def count_untraced(rows: Sequence[ServedRow], run: int) -> int:
    """Return how many rows trace nothing in this run. The first run has number 0."""
    return sum(len(row.traced) > run and row.traced[run] == 0 for row in rows)
