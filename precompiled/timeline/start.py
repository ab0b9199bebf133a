"""Assigns each second of a process's start to an activity, and estimates the same start with plain torch.compile.

A start ends when no graph is pending any longer. Time without a span belongs to the program: imports and data before
the first graph, steps after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from precompiled.core.spans import IN_PROCESS, WAITED, WAITED_FOR_REMOTE, Span
from precompiled.store import run_records
from precompiled.store.job_phases import RecordedWorker
from precompiled.store.run_records import RunProcess
from precompiled.timeline import facts as known
from precompiled.timeline.facts import Facts
from precompiled.timeline.picture import Section, in_order

# Maps the kind of work for a frame or graph to its name in a picture's legend.
_NAMES = {
    "trace": "Dynamo: tracing and guards",
    "package": "a package instead of a trace",
    known.LOOKUP: "capture, key, lookup",
    known.SUBMIT: "sending the graph",
    known.WAIT: "waiting for the artifact",
    WAITED: "waiting for the artifact",
    WAITED_FOR_REMOTE: "waiting for the artifact",
    known.LOAD: "load of the artifact",
    IN_PROCESS: "AOTAutograd and Inductor, or their cache",
}
_BEFORE = ("Python, and the hook", "import torch", "the program")
_TRACE, _COMPILE, _STEP = "Dynamo: tracing and guards", "AOTAutograd and Inductor, or their cache", "the step"
# A graph belongs to the first step if Dynamo handles it within this many seconds after another graph's second call.
SAME_STEP_S = 1.0


@dataclass(frozen=True)
class Start:
    """The start of one process. ``began`` is in seconds since the epoch. The times of sections are relative to
    ``began``.

    - ``first_step``: when the first step ended; None if the program called no graph twice
    - ``plain``: an estimate of the same start, until the first step ends, with plain torch.compile and empty caches. It
      is computed from the measured seconds of each compile.
    - ``warm``: the same estimate if torch's own cache contains all graphs. This is a lower limit: it assumes that
      torch's cache loads graphs as fast as this process loaded its artifacts.
    - ``in_process``: the compiles in this process, by their reasons
    - ``untraced``: the number of frames that a package served and that no recorded run has traced. ``plain`` lacks the
      time of their traces.
    - ``uncounted``: the number of graphs whose compile time is unknown.
    - ``is_new``: whether this is the program's first recorded run, so that torch's cache cannot have its graphs yet
    """

    process: RunProcess
    began: float
    sections: list[Section]
    first_step: float | None
    plain: list[Section]
    warm: list[Section]
    in_process: list[Section]
    untraced: int
    uncounted: int
    is_new: bool

    @property
    def seconds(self) -> float:
        return _end(self.sections)

    @property
    def is_partial(self) -> bool:
        """Whether ``plain`` is too short, because the times of some traces or compiles are unknown."""
        return bool(self.untraced or self.uncounted)

    @property
    def is_comparable(self) -> bool:
        """Whether ``plain`` is meaningful. While the graphs of a new program compile, their compile times are
        unknown.
        """
        return not (self.is_new and self.uncounted)

    @property
    def plain_seconds(self) -> float:
        return _end(self.plain)

    @property
    def warm_seconds(self) -> float:
        return _end(self.warm)


def _end(sections: Sequence[Section]) -> float:
    return max((at + seconds for _, at, seconds in sections), default=0.0)


def start(process: RunProcess, facts: Facts) -> Start:
    spans = [span for _, span in process.frames] + [span for _, span in known.graph_spans(process)] + process.waits
    # The thread of the earliest span is the main thread. Another thread loads swapped artifacts while the program runs.
    thread = min(spans, key=lambda span: span.began).thread if spans else process.pid
    mine = [span for span in spans if span.thread == thread]
    first = min((span.began for span in mine), default=process.began)
    began = process.launched or first
    ends = [span.ended for span in spans]
    if any(graph.get("state") == "pending" for graph in process.graphs.values()):
        ends.append(known.end_of(process, facts.now))
    first_step = _first_step(process, mine)
    end = max([*ends, first_step or 0.0], default=first)
    eager = [
        (at, known.swap_time(graph) or end)
        for graph in process.graphs.values()
        if (at := known.miss_time(graph)) is not None
    ]
    sections = [*_before(process, began, first)]
    sections += [(name, at - began, seconds) for name, at, seconds in _covered(mine, first, end, eager)]
    in_process = [
        (f"compiled in process: {graph.get('reason') or 'no reason'}", span.began - began, span.seconds)
        for graph, span in known.graph_spans(process)
        if span.what == IN_PROCESS
    ]
    found = Start(
        process, began, sections, first_step and first_step - began, [], [], in_process, 0, 0, _is_new(process, facts)
    )
    return _with_plain(found, facts)


def _is_new(process: RunProcess, facts: Facts) -> bool:
    """Whether this is the program's first recorded run, and no other program or host had compiled its graphs before."""
    return process.identity in facts.new and not any(
        graph.get("source") in ("hit", "package") for graph in process.graphs.values()
    )


def _first_step(process: RunProcess, spans: Sequence[Span]) -> float | None:
    """Return when the first step ended: when a graph is called a second time and no work of Dynamo or the backend
    follows.

    If work follows each second call, the first step ended with the last work. Returns None if the program called no
    graph twice.
    """
    work = [span for span in spans if span.what not in (known.LOAD, WAITED)]
    for at in process.second_calls:
        if not any(at < span.began < at + SAME_STEP_S for span in work):
            return at
    return max(span.ended for span in work) if process.second_calls and work else None


def _before(process: RunProcess, began: float, first: float) -> list[Section]:
    torch_began, torch_ended = process.torch
    if not began <= torch_began <= torch_ended <= first:
        return in_order([("the program", first - began)])
    seconds = (torch_began - began, torch_ended - torch_began, first - torch_ended)
    return in_order(zip(_BEFORE, seconds, strict=True))


def _covered(
    spans: Sequence[Span], first: float, end: float, eager: Sequence[tuple[float, float]]
) -> list[tuple[str, float, float]]:
    """The activity at each moment from ``first`` to ``end``. If spans cover the moment, this is the activity of the
    innermost span. Otherwise, it is a step.

    Sections do not overlap.
    """
    edges = sorted(
        {
            first,
            end,
            *(edge for span in spans for edge in (span.began, span.ended)),
            *(edge for both in eager for edge in both),
        }
    )
    coming = sorted(spans, key=lambda span: (span.began, -span.seconds), reverse=True)
    eager_coming = sorted(eager, reverse=True)
    inside: list[Span] = []  # sorted by start, so the innermost span is the last
    eager_until = first
    found: list[tuple[str, float, float]] = []
    for at, until in pairwise(edges):
        while coming and coming[-1].began <= at:
            inside.append(coming.pop())
        inside = [span for span in inside if span.ended > at]
        while eager_coming and eager_coming[-1][0] <= at:
            eager_until = max(eager_until, eager_coming.pop()[1])
        if not first <= at < until <= end:
            continue
        if inside:
            name = _NAMES.get(inside[-1].what, "the program")
        else:
            name = "eager steps" if until <= eager_until else "compiled steps"
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1], until - found[-1][1])
        else:
            found.append((name, at, until - at))
    return found


def _with_plain(item: Start, facts: Facts) -> Start:
    """Return ``item`` with the estimates for plain torch.compile. The estimates exclude work after the first step."""
    process = item.process
    length = item.first_step if item.first_step is not None else float("inf")
    until = item.began + length
    spent = by_name((name, at, min(s, length - at)) for name, at, s in item.sections if at < length)
    trace_s, untraced = spent[_TRACE], 0
    for name, span in process.frames:
        if span.what == "package" and span.began < until:
            trace_s += facts.traces.get(name, 0.0)
            untraced += name not in facts.traces
    graphs = [graph for graph in process.graphs.values() if _begin(graph) < until]
    served = [graph for graph in graphs if graph.get("source") in ("hit", "swap", "package")]
    compile_s = sum(graph.get("compile_s", 0.0) for graph in served) + spent[_COMPILE]
    uncounted = sum(graph.get("state") in ("pending", "failed") for graph in graphs)
    # An eager step says nothing about the duration of the first step with plain torch.compile.
    step_s = 0.0 if "eager steps" in spent or item.first_step is None else spent["compiled steps"]
    before = [(name, spent[name]) for name in _BEFORE]
    plain = in_order([*before, (_TRACE, trace_s), (_COMPILE, compile_s), (_STEP, step_s)])
    load_s = sum(graph.get("load_s", 0.0) for graph in served)
    warm = in_order([*before, (_TRACE, trace_s), (_COMPILE, load_s), (_STEP, step_s)])
    return replace(item, plain=plain, warm=warm, untraced=untraced, uncounted=uncounted)


def _begin(graph: dict[str, Any]) -> float:
    return min((span.began for span in run_records.spans_of(graph)), default=0.0)


def by_name(sections: Iterable[Section]) -> dict[str, float]:
    """Map each name to the total seconds of the sections with this name. Names without a section map to 0."""
    found: dict[str, float] = defaultdict(float)
    for name, _, seconds in sections:
        found[name] += seconds
    return found


def worker_sections(worker: RecordedWorker, began: float, now: float) -> list[Section]:
    """List a worker's activities after ``began``: its start, and the phases of its jobs.

    While a worker has two jobs, only the later one is listed.
    """
    found: list[Section] = []
    if worker.ready > began:
        at = max(worker.launched, began)
        found.append(("worker: starts", at - began, worker.ready - at))
    for number, job in enumerate(worker.jobs):
        edges = [("worker: compiles", job.began), *job.phases, ("", job.ended or now)]
        parts = [(name, at, until) for (name, at), (_, until) in pairwise(edges)]
        for later in worker.jobs[number + 1 :]:
            ended = later.ended or now
            parts = [(name, at, min(until, later.began)) for name, at, until in parts] + [
                (name, max(at, ended), until) for name, at, until in parts
            ]
        for name, at, until in parts:
            if until > max(at, began):
                known_name = "worker: compiles" if name in ("remote", "turn", "decode") else name
                found.append((known_name, max(at, began) - began, until - max(at, began)))
    return found


def queue_sections(facts: Facts, began: float) -> list[Section]:
    """The daemon's queue, from a job's submit until a worker takes the job. Merges overlapping waits."""
    found: list[Section] = []
    for job in sorted((job for worker in facts.workers for job in worker.jobs), key=lambda job: job.queued):
        at = max([job.queued, began, *(at + seconds + began for _, at, seconds in found[-1:])])
        if job.began - at > 0.01:
            found.append(("queued", at - began, job.began - at))
    return found
