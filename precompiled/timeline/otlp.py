"""Make OpenTelemetry spans from the facts: OTLP as JSON, which a collector accepts at ``/v1/traces``.

A graph's id is the id of its trace: 16 bytes in hexadecimal, as in OpenTelemetry. The spans of that trace are the
client's work for the graph, the time in the daemon's queue, and the job with its phases. If a process runs an artifact
that a job of another trace has compiled, its trace has a link to that job.

Format: opentelemetry-proto's ``ExportTraceServiceRequest``, in OTLP's mapping to JSON (ids in hexadecimal, 64-bit
numbers as text).
"""

from __future__ import annotations

import hashlib
import re
import socket
from typing import Any

from precompiled.store import runs
from precompiled.store.jobs import RecordedJob, RecordedWorker
from precompiled.store.runs import RunProcess
from precompiled.timeline import facts as known
from precompiled.timeline.facts import Facts
from precompiled.version import VERSION

_TRACE = re.compile(r"[0-9a-f]{32}")
INTERNAL, ERROR = 1, 2  # the kind of a span, the code of a status


def request(facts: Facts) -> dict[str, Any]:
    """The complete document."""
    found = [_resource(process.program, process.pid, _client(process, facts)) for process in facts.processes]
    found += [
        _resource("precompiled worker", worker.pid, [span for job in worker.jobs for span in _job(worker, job, facts)])
        for worker in facts.workers
    ]
    return {"resourceSpans": [item for item in found if item["scopeSpans"][0]["spans"]]}


def _resource(service: str, pid: int, spans: list[dict[str, Any]]) -> dict[str, Any]:
    about = {"service.name": service, "process.pid": pid, "host.name": socket.gethostname()}
    scope = {"name": "precompiled", "version": VERSION}
    return {"resource": {"attributes": _attributes(about)}, "scopeSpans": [{"scope": scope, "spans": spans}]}


def _client(process: RunProcess, facts: Facts) -> list[dict[str, Any]]:
    found = []
    for graph in process.graphs.values():
        spans = runs.spans_of(graph)
        if max((span.ended for span in spans), default=0.0) < facts.began:
            continue
        end = known.swapped(graph) or known.end_of(process, facts.now)
        about = {f"precompiled.{name}": graph[name] for name in ("name", "key", "state", "source", "reason")
                 if graph.get(name)}  # fmt: skip
        root = _span(graph["id"], "graph", f"graph {graph.get('name', '')}", min(span.began for span in spans),
                     max([end, *(span.ended for span in spans)]), about)  # fmt: skip
        if graph.get("reason"):
            root["status"] = {"code": ERROR, "message": f"{graph['reason']}: {graph.get('message', '')}"}
        job = facts.job_of(graph)
        if job is not None and job.id != graph["id"]:
            root["links"] = [{"traceId": _trace_id(job.id), "spanId": _span_id(job.id, _job_name(job))}]
        found.append(root)
        for number, span in enumerate(spans):
            path, thread = f"{number} {span.what}", {"thread.id": span.thread}
            found.append(_span(graph["id"], path, span.what, span.began, span.ended, thread, "graph"))
    return found


def _job(worker: RecordedWorker, job: RecordedJob, facts: Facts) -> list[dict[str, Any]]:
    here = _job_name(job)
    about = {"precompiled.key": job.key, "precompiled.name": job.name, "precompiled.attempt": job.attempt,
             "precompiled.outcome": job.outcome or "under way"}  # fmt: skip
    whole = _span(job.id, here, f"job {job.name}", job.began, job.ended or facts.now, about, "graph")
    if job.outcome == "failed":
        whole["status"] = {"code": ERROR, "message": job.reason}
    found = [_span(job.id, f"queue {here}", "queued", job.queued, job.began, {}, "graph"), whole]
    for number, span in enumerate(job.spans):
        name, thread = f"{here} {number}", {"thread.id": span.thread}
        found.append(_span(job.id, name, span.what, span.began, span.ended, thread, here))
    return found


def _job_name(job: RecordedJob) -> str:
    return f"job {job.attempt} {job.began:.6f}"


def _span(
    id: str, path: str, name: str, began: float, ended: float, about: dict[str, Any], parent: str = ""
) -> dict[str, Any]:
    """A span. ``path`` identifies it within its trace; ``parent`` is the path of the enclosing span."""
    found: dict[str, Any] = {
        "traceId": _trace_id(id), "spanId": _span_id(id, path), "name": name, "kind": INTERNAL,
        "startTimeUnixNano": str(round(began * 1e9)), "endTimeUnixNano": str(round(max(began, ended) * 1e9)),
        "attributes": _attributes(about),
    }  # fmt: skip
    if parent:
        found["parentSpanId"] = _span_id(id, parent)
    return found


def _trace_id(id: str) -> str:
    return id if _TRACE.fullmatch(id) else hashlib.sha256(id.encode()).hexdigest()[:32]


def _span_id(id: str, path: str) -> str:
    return hashlib.sha256(f"{id} {path}".encode()).hexdigest()[:16]


def _attributes(about: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": name, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}}
        for name, value in about.items()
    ]
