"""Makes a trace in the Trace Event Format: JSON that Perfetto (ui.perfetto.dev) and chrome://tracing show.

Rows:

- for each client, its threads and its graphs (eager until the swap, then compiled);
- for the daemon, its queue;
- for each worker, its threads, with torch's phases and the C++ compilers;
- for the remote, the fetches by workers, and each request.

Arrows lead from the submit of a graph, over the queue and the job, to the load of its artifact. ``args.id`` is the
graph's id. A job has the id of the first graph for which it was submitted.

Slices of a row must nest. The document "Trace Event Format" of Chromium's catapult project describes the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from precompiled.core.spans import Span
from precompiled.store.job_phases import RecordedJob, RecordedWorker
from precompiled.store.run_records import RunProcess
from precompiled.timeline import facts as known
from precompiled.timeline.facts import Facts
from precompiled.version import VERSION

MAX_PID = 1 << 22  # the kernel's limit; rows without a process have higher numbers
DAEMON, REMOTE = MAX_PID + 1, MAX_PID + 2
Event = dict[str, Any]


def trace(facts: Facts) -> dict[str, object]:
    """The complete document."""
    made = _Trace(facts)
    for process in facts.processes:
        made.client(process)
    for worker in facts.workers:
        made.worker(worker)
    made.remote()
    made.queue()
    made.arrows()
    # Time starts at the first slice, because a slice may begin before ``facts.began``.
    first = min((event["ts"] for event in made.events if event["ph"] == "X"), default=0.0)
    for event in made.events:
        if event["ph"] != "M":
            event["ts"] -= first
    about = {"made by": f"precompiled {VERSION}", "ts 0 is, in seconds since the epoch": facts.began + first / 1e6}
    return {"traceEvents": made.events, "displayTimeUnit": "ms", "otherData": about}


class _Trace:
    def __init__(self, facts: Facts) -> None:
        self.events: list[Event] = []
        self._facts = facts
        self._pids: set[int] = set()
        self._fetches: list[tuple[RecordedJob, Span]] = []
        # The slices that arrows connect. ``_sent`` and ``_loaded`` map a graph's id to its client's submit and loads.
        # ``_jobs`` maps id(job) to the job's slices.
        self._sent: dict[str, Event] = {}
        self._loaded: dict[str, list[Event]] = {}
        self._jobs: dict[int, list[Event]] = {}

    # ------------------------------------------------ rows

    def _process(self, pid: int, name: str, order: int) -> int:
        """A number for a process: its pid, or a higher number if an earlier process had the same pid."""
        while pid in self._pids:
            pid += MAX_PID + 10
        self._pids.add(pid)
        self._say("process_name", pid, 0, name=name)
        self._say("process_sort_index", pid, 0, sort_index=order)
        return pid

    def _say(self, what: str, pid: int, tid: int, **args: object) -> None:
        self.events.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args})

    def _slice(self, pid: int, tid: int, name: str, began: float, ended: float, args: Mapping[str, object]) -> Event:
        event = {
            "ph": "X",
            "name": name,
            "cat": "precompiled",
            "pid": pid,
            "tid": tid,
            "ts": (began - self._facts.began) * 1e6,
            "dur": max(0.0, ended - began) * 1e6,
            "args": args,
        }
        self.events.append(event)
        return event

    def _rows(self, pid: int, name: str, times: Sequence[tuple[float, float]], below: int = 0) -> list[int]:
        """Assign each of ``times`` (begin and end) to the first row that is free at its begin. Row numbers start above
        ``below``.
        """
        until: list[float] = []
        found = [0] * len(times)
        for at in sorted(range(len(times)), key=lambda at: times[at]):
            began, ended = times[at]
            row = next((row for row, free in enumerate(until) if free <= began), len(until))
            if row == len(until):
                until.append(ended)
                named = name if row == 0 else f"{name} ({row + 1})"
                self._say("thread_name", pid, below + row + 1, name=named)
            until[row] = ended
            found[at] = below + row + 1
        return found

    # ------------------------------------------------ slices

    def client(self, process: RunProcess) -> None:
        rank = f" rank {process.rank} of {process.ranks}" if process.ranks > 1 else ""
        pid = self._process(process.pid, f"{process.program}{rank}", 10 + process.rank)
        mine: list[tuple[Span, dict[str, Any]]] = [
            (span, {"frame": name, "seconds": span.seconds}) for name, span in process.frames
        ]
        mine += [(span, {**_about(graph), "seconds": span.seconds}) for graph, span in known.graph_spans(process)]
        mine += [(span, {"seconds": span.seconds}) for span in process.waits]
        mine = [(span, args) for span, args in mine if span.ended >= self._facts.began]
        threads = {span.thread for span, _ in mine}
        first = min((span for span, _ in mine), key=lambda span: span.began, default=None)
        program = first.thread if first is not None else process.pid
        for thread in sorted(threads | {program}):
            named = "the program" if thread == program else "precompiled-swap"
            self._say("thread_name", pid, thread, name=named)
        torch_began, torch_ended = process.torch
        if torch_began and torch_ended >= self._facts.began:
            self._slice(pid, program, "import torch", torch_began, torch_ended, {})
        for (span, args), (began, ended) in zip(mine, nest_spans([span for span, _ in mine]), strict=True):
            name = f"{span.what} {args['frame']}" if "frame" in args else span.what
            event = self._slice(pid, span.thread, name, began, ended, args)
            if span.what == known.SUBMIT:
                self._sent.setdefault(args["id"], event)
            elif span.what == known.LOAD:
                self._loaded.setdefault(args["id"], []).append(event)
        end = known.end_of(process, self._facts.now)
        for number, graph in enumerate(process.graphs.values()):
            self._ways(pid, MAX_PID + 100 + number, graph, end)

    def _ways(self, pid: int, tid: int, graph: dict[str, Any], end: float) -> None:
        """Add a graph's row: eager, then compiled."""
        missed, swapped = known.miss_time(graph), known.swap_time(graph)
        if missed is None and swapped is None:
            return
        if missed is not None and swapped is not None and swapped < self._facts.began:
            missed = None
        if swapped is not None:
            swapped = max(swapped, self._facts.began)
        self._say("thread_name", pid, tid, name=f"graph {graph.get('name', '')}")
        args = _about(graph)
        if missed is not None:
            calls = graph.get("calls_eager")
            before = calls and calls - sum(graph.get("eager_after_swap", {}).values())
            eager = {**args, "calls": before}
            self._slice(pid, tid, "eager", missed, min(swapped or end, max(end, missed)), eager)
        if swapped is not None and end > swapped:
            self._slice(pid, tid, "compiled", swapped, end, {**args, "calls": graph.get("calls_compiled")})

    def worker(self, worker: RecordedWorker) -> None:
        pid = self._process(worker.pid, "worker", 1000)
        if worker.ready > self._facts.began:
            self._say("thread_name", pid, worker.pid, name="start")
            self._slice(pid, worker.pid, "starts", worker.launched, worker.ready, {})
        times = [(job.began, job.ended or self._facts.now) for job in worker.jobs]
        rows = self._rows(pid, "jobs", times, MAX_PID + 1000)  # a worker may begin a job before the last one ends
        for job, (_, ended), row in zip(worker.jobs, times, rows, strict=True):
            args = {
                "id": job.id,
                "key": job.key[:12],
                "graph": job.name,
                "attempt": job.attempt,
                "outcome": job.outcome or "under way",
                "reason": job.reason,
                "kernels": sum(built for built, _ in job.kernels.values()),
            }
            slice = self._slice(pid, row, f"job {job.name}", job.began, ended, args)
            self._jobs[id(job)] = [slice]
            inside = [Span("job", job.began, ended - job.began, worker.pid), *job.spans]
            for span, (at, until) in list(zip(inside, nest_spans(inside), strict=True))[1:]:
                tid = row if span.thread == worker.pid else span.thread
                self._slice(pid, tid, span.what, at, until, {"id": job.id, "seconds": span.seconds})
            for thread in {span.thread for span in job.spans} - {worker.pid}:
                self._say("thread_name", pid, thread, name="compilers")
            for span in job.spans:
                if span.what == "remote":
                    self._fetches.append((job, span))

    def remote(self) -> None:
        if not self._fetches and not self._facts.requests:
            return
        self._process(REMOTE, "remote", 2000)
        spans = [(span.began, span.ended) for _, span in self._fetches]
        for (job, span), tid in zip(self._fetches, self._rows(REMOTE, "asked", spans), strict=True):
            found = {"exists": "found", "parked": "another host compiles it"}.get(job.outcome, "not there")
            self._slice(REMOTE, tid, f"fetch {job.name}", span.began, span.ended, {"id": job.id, "answer": found})
        asked = self._facts.requests
        times = [(max(request.began, self._facts.began), request.ended) for request in asked]
        rows = self._rows(REMOTE, "requests", times, MAX_PID)
        for request, (began, ended), tid in zip(asked, times, rows, strict=True):
            args = {"path": request.path, "bytes": request.bytes, "problem": request.problem}
            self._slice(REMOTE, tid, request.what, began, ended, args)

    def queue(self) -> None:
        found = [job for worker in self._facts.workers for job in worker.jobs]
        if not found:
            return
        self._process(DAEMON, "daemon", 500)
        ended: dict[str, float] = {}  # the last end of a repeated job
        times = []
        found.sort(key=lambda job: job.began)
        for job in found:
            times.append((max(job.queued, ended.get(job.id, 0.0)), job.began))
            ended[job.id] = job.ended or job.began
        for job, (queued, began), tid in zip(found, times, self._rows(DAEMON, "queue", times), strict=True):
            args = {"id": job.id, "key": job.key[:12]}
            self._jobs[id(job)].insert(0, self._slice(DAEMON, tid, f"queued {job.name}", queued, began, args))

    def arrows(self) -> None:
        """Add arrows from the submit of each graph, over the queue and the job, to the load of its artifact."""
        number = 0
        for process in self._facts.processes:
            for graph in process.graphs.values():
                job = self._facts.job_of(graph)
                slices = [self._sent[graph["id"]]] if graph["id"] in self._sent else []
                # A graph without a submit was not queued: its artifact existed before its lookup.
                slices += (self._jobs[id(job)] if slices else self._jobs[id(job)][-1:]) if job is not None else []
                slices += self._loaded.get(graph["id"], [])[:1]
                number += self._arrow(number + 1, graph["id"], slices)

    def _arrow(self, number: int, id: str, slices: list[Event]) -> bool:
        """Add an arrow that touches each slice near its beginning, where there is no inner slice.

        If a process joins a running job, its arrow touches the job's slice later, and does not touch the queue.
        """
        points: list[tuple[float, Event]] = []
        for event in slices:
            at = event["ts"] + min(0.5, event["dur"] / 2)
            if points:
                at = max(at, points[-1][0] + 0.1)
            if at <= event["ts"] + event["dur"]:
                points.append((at, event))
        if len(points) < 2:
            return False
        for place, (at, event) in enumerate(points):
            arrow = {
                "ph": "s" if place == 0 else "f" if place == len(points) - 1 else "t",
                "id": number,
                "name": "graph",
                "cat": "graph",
                "pid": event["pid"],
                "tid": event["tid"],
                "ts": at,
                "args": {"id": id},
            }
            if arrow["ph"] == "f":
                arrow["bp"] = "e"  # the arrow ends in the enclosing slice instead of the next slice
            self.events.append(arrow)
        return True


def _about(graph: dict[str, Any]) -> dict[str, object]:
    found = {
        "id": graph["id"],
        "graph": graph.get("name", ""),
        "key": graph.get("key", "")[:12],
        "state": graph.get("state", ""),
        "source": graph.get("source", ""),
        "reason": graph.get("reason", ""),
    }
    return {name: value for name, value in found.items() if value}


def nest_spans(spans: Iterable[Span]) -> list[tuple[float, float]]:
    """Begin and end of each span, adjusted so that a thread's spans nest.

    The times come from two clocks, so a span may seem to outlast its enclosing span by some microseconds. The end of
    such a span is cut off.
    """
    found = list(spans)
    times = [(span.began, span.ended) for span in found]
    open_: dict[int, list[float]] = {}  # maps a thread to the ends of the enclosing spans
    for at in sorted(range(len(found)), key=lambda at: (found[at].thread, times[at][0], -times[at][1])):
        began, ended = times[at]
        around = open_.setdefault(found[at].thread, [])
        while around and around[-1] <= began:
            around.pop()
        if around:
            ended = min(ended, around[-1])
        times[at] = (began, ended)
        around.append(ended)
    return times
