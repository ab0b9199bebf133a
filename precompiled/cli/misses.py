"""Summarizes the cache hits, misses and traces of a run, with the causes and costs of each miss.

nearest.py finds the causes of a miss by comparing graphs in the store. If the store no longer has the missed graph, the
run's record explains the miss.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from precompiled.cli import program_changes
from precompiled.cli.nearest import Candidate, Explained, Kepts, deciding_failure, is_published, named_sizes
from precompiled.cli.outcomes import describe_later, describe_reason, describe_record, describe_way, is_miss
from precompiled.cli.output import SHOWN_DIGITS
from precompiled.cli.pending_graphs import PendingCauses
from precompiled.cli.store import open_store
from precompiled.core.config import Settings
from precompiled.core.errors import StoreError
from precompiled.core.reasons import read_reasons
from precompiled.core.spans import WAITED
from precompiled.core.words import format_count, format_list, human_seconds
from precompiled.graph.advice import Cause
from precompiled.graph.causes import by_edit
from precompiled.store.artifact_format import Failure
from precompiled.store.job_phases import JobIndex, waits, workers
from precompiled.store.run_records import NOT_SERVED, Run, RunProcess, eager_s, runs, spans_of, traces, waited_s, way

# Sources of graphs that are hits.
_HITS = ("hit", "package")
# Maps the kind of a cause to the noun in its text (graph/advice.py). The plural adds an "s": "1 new size", "2 new
# sizes".
_NOUNS = {
    "size": "size",
    "small": "size",
    "dynamic": "size",
    "parameter": "size",
    "number": "number",
    "range": "range",
    "dtype": "dtype",
    "input": "input",
    "edit": "edit",
    "way": "branch",
    "operation": "operation",
    "value": "value",
    "flag": "value",
    "guard": "value",
    "new": "graph",
}


@dataclass
class Miss:
    """A missed graph, over all processes that have it. Seconds are the maximum over the processes."""

    name: str
    key: str
    causes: list[Cause]
    ranks: list[int]
    waited_s: float = 0.0  # seconds for which the program was blocked
    eager_s: float = 0.0  # seconds for which the graph ran eager until the swap
    worker_start_s: float = 0.0  # seconds for which the compile waited for the start of its worker
    queue_s: float = 0.0  # seconds for which the compile waited in the daemon's queue
    compile_s: float = 0.0  # seconds that the compile took in a worker
    began_before: bool = False  # the compile began before the program needed the graph
    became: str = ""  # how the graph runs; "" if it runs daemon-compiled code
    is_pending: bool = False  # the graph is pending, or was pending when its process ended
    remedy: str = ""  # what the user can do, if the graph is not served
    is_served: bool = True  # whether later runs find an artifact of the graph
    later: str = ""  # how later runs serve the graph, if it has a failure record
    since: str = ""  # why the graph is pending or not served, or what happened to it after its process ended

    @property
    def short(self) -> str:
        return self.counted(1).partition(" ")[2]

    def counted(self, number: int) -> str:
        """The causes with a count: ``1 new size``, ``2 edits at train.py:31``, ``1 by variable CPATH``."""
        if not self.causes:
            return f"{format_count(number, 'graph')} {self.became or 'no longer in the store'}"
        first, *others = dict.fromkeys(cause.short for cause in self.causes)
        noun = _NOUNS.get(self.causes[0].kind)
        said = (
            format_count(number, first, first.replace(noun, f"{noun}es" if noun == "branch" else f"{noun}s", 1))
            if noun
            else f"{number} by {first}"
        )
        return " and ".join([said, *others])

    @property
    def cost(self) -> str:
        parts = [
            f"{what} {human_seconds(seconds)}"
            for what, seconds, least in (
                ("eager for", self.eager_s, 0.05),
                ("the program waited", self.waited_s, 0.05),
                ("start of a worker", self.worker_start_s, 0.2),
                ("queue", self.queue_s, 0.2),
                ("compile", self.compile_s, 0.05),
            )
            if seconds >= least
        ]
        if self.began_before:
            parts[-1] += ", begun before this run needed it"
        return ", ".join(parts)

    def document(self) -> dict[str, Any]:
        causes = [{**asdict(cause), "advice": cause.advise(is_served=self.is_served)} for cause in self.causes]
        return {**asdict(self), "causes": causes, "short": self.short}


@dataclass
class Summary:
    graphs: int = 0
    hits: int = 0
    untraced: int = 0  # hits that came from packages
    misses: list[Miss] = field(default_factory=list)
    traced: int = 0  # functions that Dynamo traced
    trace_s: float = 0.0
    waited_s: float = 0.0  # in ``precompiled.wait()``
    edited: list[str] = field(default_factory=list)  # files that differ from the previous run
    change: str = ""  # how the program differs from the previous run
    no_graph: str = ""  # why the program made no graph: the first trace that did not end, or its own error
    is_new: bool = False  # whether no earlier run of the program is recorded
    is_alive: bool = False  # whether the program still runs

    def sentence(self) -> str:
        """One sentence: ``of 14 graphs: 12 hits (10 not traced), 1 new size, 1 edit at train.py:31``."""
        if not self.graphs and self.is_alive and not self.no_graph:
            return "no graph yet"  # torch may compile the first graph in process
        if not self.graphs:
            return f"no graph: {self.no_graph or 'torch.compile made none, or no compiled function was called'}"
        of_hits = f" ({self.untraced} not traced)" if self.untraced else ""
        hits = f"{format_count(self.hits, 'hit', zero='no')}{of_hits}"
        numbers: Counter[str] = Counter()
        for miss in self.misses:
            numbers[miss.short] += len(miss.ranks)
        by_short = {miss.short: miss for miss in self.misses}
        parts = [miss.counted(numbers[short]) for short, miss in by_short.items()]
        return f"of {format_count(self.graphs, 'graph')}: {', '.join([hits, *parts])}"

    def seconds(self) -> str:
        """The seconds that the misses and traces cost, as text; "" if none reaches 0.1 s."""
        parts = [
            f"{human_seconds(seconds)} {what}"
            for seconds, what in (
                (max((miss.eager_s for miss in self.misses), default=0.0), "of eager code until the last swap"),
                (sum(miss.waited_s for miss in self.misses), "of waiting"),
                (self.waited_s, "in precompiled.wait()"),
                (self.trace_s, f"of tracing {format_count(self.traced, 'function')}"),
            )
            if seconds >= 0.1
        ]
        return f"it cost {format_list(parts)}" if parts else ""


@dataclass(frozen=True)
class _Context:
    """Facts about a run that help to find the causes of its misses."""

    keys: set[str]  # the keys of the run's graphs
    earlier: Mapping[str, float]  # the keys of earlier runs, and when the first of these runs loaded the artifact
    edited: Sequence[str]  # files that differ from the program's previous run


def summary(settings: Settings, run: Run, known: Sequence[Run]) -> Summary:
    """The summary of a run. ``known``: all recorded runs."""
    found = Summary()
    pending = PendingCauses(settings)
    kepts: Kepts | None = None
    jobs: JobIndex | None = None
    by_name: dict[tuple[str, str, str, bool], Miss] = {}
    submitted = _first_submits(run)
    earlier = program_changes.earlier_processes(run, known)
    found.edited = program_changes.edited_files(run, earlier)
    found.change = program_changes.describe_change(run, earlier)
    found.is_new, found.is_alive = not earlier, run.is_alive
    context = _Context(_keys(run), _loads(other for other in known if other.began < run.began), found.edited)
    for process in run.processes:
        traced = traces(process)
        found.traced += len(traced)
        found.trace_s = max(found.trace_s, sum(seconds for _name, seconds in traced))
        found.no_graph = found.no_graph or _why_no_graph(process)
        found.waited_s = max(found.waited_s, sum(span.seconds for span in process.waits if span.what == WAITED))
        for graph in process.graphs.values():
            found.graphs += 1
            became = way(graph)
            if became == "compiled" and graph.get("source") in _HITS:
                found.hits += 1
                found.untraced += graph["source"] == "package"
                continue
            missed, record = is_miss(graph), describe_record(graph)
            name = graph.get("key", "") or graph.get("name", ""), became, graph.get("reason", ""), missed
            if name not in by_name:
                if kepts is None and graph.get("key"):
                    kepts = _kepts(settings)
                causes = _causes(kepts, process, graph, context) if missed else []
                kept = kepts.of(graph.get("key", "")) if kepts is not None else []
                failure = deciding_failure(kept)
                is_served = failure is None and (is_published(kept) or pending.is_served(process, graph))
                since = describe_reason(graph)
                if not since and became == "pending":
                    since = _since(kept) or pending.explain(process, graph, has_cause=bool(causes))
                elif not since and missed and not causes:
                    since = _describe_lack(kepts, process, graph)
                by_name[name] = Miss(
                    graph.get("name", ""),
                    graph.get("key", ""),
                    causes,
                    [],
                    became=f"{NOT_SERVED.get(became, became)} because {record}" if record else describe_way(graph),
                    remedy=_remedy(graph) if record or (missed and not is_served) else "",
                    is_served=is_served,
                    later=describe_later(failure) if failure is not None else "",
                    is_pending=became == "pending",
                    since=since,
                )
            if jobs is None and graph.get("source") == "swap":
                jobs = JobIndex(workers(settings.cache_dir))
            _add(by_name[name], process, graph, jobs, submitted)
    found.misses = list(by_name.values())
    return found


def _why_no_graph(process: RunProcess) -> str:
    for item in process.functions:
        if item["state"] == "raised":
            return f"torch failed to trace {item['name']} ({item['message']})"
        if item["state"] == "interrupted":
            return f"interrupted while Dynamo traced {item['name']} ({item['message']})"
    return f"the program ended with {process.error} before its first graph" if process.error else ""


def _kepts(settings: Settings) -> Kepts | None:
    try:
        return Kepts(open_store(settings))
    except StoreError:
        return None


def _remedy(graph: dict[str, Any]) -> str:
    reason = read_reasons().get(graph.get("reason", ""))
    return reason.plain_advice.replace("KEY", graph.get("key", "")[:SHOWN_DIGITS]) if reason is not None else ""


def _since(kept: Sequence[Candidate]) -> str:
    """Say what happened to a graph that was pending when its process ended. ``kept``: what the store has of it."""
    if is_published(kept):
        return "the graph has been compiled since"
    failed = next((item.stored.reason for item in kept if isinstance(item.stored, Failure)), "")
    return f"the compile has failed since ({failed})" if failed else ""


def _describe_lack(kepts: Kepts | None, process: RunProcess, graph: dict[str, Any]) -> str:
    """Say why a graph that had an artifact cannot be compared with other graphs."""
    if kepts is None or kepts.of(graph.get("key", "")):
        return "the store has no copy of the graph that can be read"
    own = [item for item in kepts.all if item.is_own and not item.is_only_in_run]
    is_cleared = process.ended and all(item.created > process.ended for item in own)
    return "the store has been cleared since" if is_cleared else "the store no longer has it"


def _first_submits(run: Run) -> dict[str, float]:
    """Map each key that the run submitted to the time of the first submit. Graphs with one key share one job."""
    found: dict[str, float] = {}
    for graph in run.graphs:
        for span in (span for span in spans_of(graph) if span.what == "submit"):
            key = graph.get("key", "")
            found[key] = min(span.began, found.get(key, span.began))
    return found


def _add(
    miss: Miss, process: RunProcess, graph: dict[str, Any], jobs: JobIndex | None, submitted: Mapping[str, float]
) -> None:
    miss.ranks.append(process.rank)
    miss.waited_s = max(miss.waited_s, waited_s(graph))
    if graph.get("source") == "swap":
        miss.eager_s = max(miss.eager_s, eager_s(process, graph))
        miss.compile_s = max(miss.compile_s, graph.get("compile_s", 0.0))
        needed = next((span.began for span in spans_of(graph) if span.what == "submit"), None)
        job = jobs.of(graph) if jobs is not None and needed is not None else None
        if job is not None and needed is not None:
            start_s, queue_s = waits(*job, needed)
            miss.began_before |= job[0].began < submitted[graph.get("key", "")]
            miss.worker_start_s, miss.queue_s = max(miss.worker_start_s, start_s), max(miss.queue_s, queue_s)


def _keys(run: Run) -> set[str]:
    return {graph.get("key", "") for graph in run.graphs}


def _loads(known: Iterable[Run]) -> dict[str, float]:
    """Map each key of these runs to the time of its first load, or to infinity if no run loaded its artifact."""
    found: dict[str, float] = {}
    for graph in (graph for run in known for graph in run.graphs):
        loads = [span.ended for span in spans_of(graph) if span.what == "load"]
        key = graph.get("key", "")
        found[key] = min([*loads, found.get(key, math.inf)])
    return found


def _causes(kepts: Kepts | None, process: RunProcess, graph: dict[str, Any], context: _Context) -> list[Cause]:
    key = graph.get("key", "")
    if kepts is None or not key or not kepts.of(key):
        return []
    looked_up = min((span.began for span in spans_of(graph)), default=process.began)

    def may_compare(item: Candidate) -> bool:
        # Do not compare with graphs of later runs. The time of the lookup decides, because this run's own artifact may
        # be younger than graphs of later runs, if it was recompiled.
        return item.created < looked_up or item.key in context.keys or item.key in context.earlier

    try:
        found = kepts.explain(key, _files(process), may_compare)
    except StoreError:
        return []
    # A lookup may miss an artifact whose manifest is older than the lookup, because the manifest is written before the
    # artifact is published. If no earlier variant has guards, a new size is not the cause of the miss.
    if found.mine[0].created >= looked_up or not any(variant["guards"] for variant in found.variants[:-1]):
        if context.earlier.get(key, math.inf) < looked_up <= found.mine[0].created:
            what = "the store had this graph, and it was removed (by `precompiled cache clear`, or to make room)"
            return [Cause("new", "removed graph", what)]
        return _with_edits(found, context.keys, context.edited)
    # The store had artifacts of the key, but only for other sizes.
    last = found.variants[-1]
    others = " or ".join(variant["guards"] for variant in found.variants[:-1]) or "other sizes"
    sizes = named_sizes(found.program, last["sizes"])
    return [Cause("size", "new size", f"{sizes}; what was there holds where {others}")]


def causes_with_edits(settings: Settings, found: Explained) -> list[Cause]:
    """The causes of a graph, including the edits before the first run that has the graph."""
    known, key = runs(settings.cache_dir), found.mine[0].key
    run = next((run for run in reversed(known) if key in _keys(run)), None)
    if run is None:
        return found.causes
    edited = program_changes.edited_files(run, program_changes.earlier_processes(run, known))
    return _with_edits(found, _keys(run), edited)


def _with_edits(found: Explained, keys: set[str], edited: Sequence[str]) -> list[Cause]:
    """``keys``: the keys of a run's graphs. ``edited``: the files that changed since the previous run."""
    is_of_run = found.nearest is None or found.nearest.kept.key in keys
    return found.causes if is_of_run else by_edit(found.causes, edited)


def _files(process: RunProcess) -> Sequence[str]:
    """The program's main file, if its command names one, and the files that the process has recorded."""
    return [*filter(None, [process.main_file]), *process.files]
