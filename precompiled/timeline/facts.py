"""Reads the facts about a period from the store: clients' processes, workers' jobs, and requests to the remote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from precompiled.core.spans import IN_PROCESS, SECOND_CALL, Span
from precompiled.store import job_phases, run_records
from precompiled.store.job_phases import JobIndex, RecordedJob, RecordedWorker
from precompiled.store.requests import RemoteRequest, requests
from precompiled.store.run_records import RunProcess

# GraphReport.spans uses these names (client/ledger.py).
LOOKUP, SUBMIT, WAIT, LOAD = "lookup", "submit", "wait", "load"


@dataclass(frozen=True)
class Facts:
    """The facts of one period.

    The period is from ``began`` to ``now``, in seconds since the epoch. ``traces`` maps a frame's name to the seconds
    of Dynamo's last trace of the frame in any recorded run. ``new`` has the identities of the programs without an
    earlier run.
    """

    began: float
    now: float
    processes: list[RunProcess]
    workers: list[RecordedWorker]
    traces: dict[str, float]
    requests: list[RemoteRequest] = field(default_factory=list)
    new: frozenset[tuple[str, ...]] = frozenset()

    def job_of(self, graph: dict[str, Any]) -> RecordedJob | None:
        """The job whose artifact a graph runs."""
        found = self._jobs.of(graph)
        return found[0] if found is not None else None

    @cached_property
    def _jobs(self) -> JobIndex:
        return JobIndex(self.workers)


def gather(root: Path, since: float, now: float, chosen: Callable[[RunProcess], bool] = lambda process: True) -> Facts:
    """Read the facts about the period from ``since`` to ``now`` in the store at ``root``. ``chosen`` selects
    processes.
    """
    known = run_records.processes(root)
    traces = {name: span.seconds for process in known for name, span in process.frames if span.what == "trace"}
    processes = [process for process in known if chosen(process) and end_of(process, now) >= since]
    workers = []
    for worker in job_phases.workers(root):
        mine = [job for job in worker.jobs if (job.ended or now) >= since]
        if mine:
            workers.append(replace(worker, jobs=mine))
    earlier = {process.identity for process in known if process.began < since}
    new = frozenset(process.identity for process in processes if process.identity not in earlier)
    return Facts(since, now, processes, workers, traces, requests(root, since), new)


def end_of(process: RunProcess, now: float) -> float:
    """Return when a process ended or last wrote a record; ``now`` if it is running."""
    return now if process.is_alive else process.last_seen


def graph_spans(process: RunProcess) -> Iterator[tuple[dict[str, object], Span]]:
    for graph in process.graphs.values():
        for span in run_records.spans_of(graph):
            if span.what != SECOND_CALL:
                yield graph, span


def swap_time(graph: Mapping[str, object]) -> float | None:
    """Return when a graph's compiled code was ready (the end of its last load or compile in process), or None."""
    if graph.get("state") not in ("compiled", "bypassed") or not graph.get("source"):  # the compile raised
        return None
    ends = [span.ended for span in run_records.spans_of(graph) if span.what in (LOAD, IN_PROCESS)]
    return max(ends, default=None)


def miss_time(graph: Mapping[str, object]) -> float | None:
    """Return when a graph was submitted, or None if it was not. A submitted graph runs eager until its artifact is
    ready.
    """
    return min((span.began for span in run_records.spans_of(graph) if span.what == SUBMIT), default=None)
