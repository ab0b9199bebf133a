"""Records the phases of each worker's jobs, for display by `tools trace`, `timeline` and `status`.

::

    jobs/<pid>-<started>.jsonl

Each worker has its own file. The files of the last KEPT workers are kept. Each line is a JSON object. The first line
describes the worker. A job then has:

- a line at its begin
- a line for each phase that it enters
- lines with the number of its kernels that are built
- a line at its end, with the longest spans that torch and precompiled measured

A job without an end is under way, or its worker has died. If the worker died, the job's outcome is LOST, and the file's
last write counts as the job's end.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precompiled.core.errors import StoreError
from precompiled.core.files import process_start
from precompiled.core.spans import Span, span_until_now
from precompiled.core.words import format_count, human_seconds
from precompiled.store import lines, trust
from precompiled.store.run_records import spans_of, start_of

log = logging.getLogger("precompiled")

JOBS = "jobs"
KEPT = 64
AT_ONCE = 2  # the maximum number of jobs that a worker has at the same time
MAX_SPANS = 80  # the longest spans of a job are kept, so that the file has room for all jobs of its worker
SHORT_S = 0.001  # seconds; shorter spans are not kept
ESTIMATED_BY = 5  # the number of jobs in an estimate
LOST = "lost"  # the outcome of a job whose worker died


@dataclass
class RecordedJob:
    """One job. Times are in seconds since the epoch, or 0 before the event. ``queued``: when the daemon received the
    job.
    """

    id: str
    key: str
    name: str
    attempt: int
    queued: float
    began: float
    ended: float = 0.0
    outcome: str = ""  # as in wire.Finished, or LOST
    reason: str = ""
    phases: list[tuple[str, float]] = field(default_factory=list)  # the phases that the job entered, and when
    # Maps a phase to the number of built kernels and the number of all kernels.
    kernels: dict[str, tuple[int, int]] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)


@dataclass
class RecordedWorker:
    """A worker process. ``launched``, ``ready``: when it was started, and when it had imported torch."""

    pid: int
    started: str
    launched: float
    ready: float
    jobs: list[RecordedJob] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return start_of(self.pid) == self.started


@dataclass(frozen=True)
class UnderWay:
    """A job that a worker is running.

    ``estimate_s``: the median seconds of recent jobs with this graph name, or None if there are none.
    """

    worker: int  # its pid
    id: str
    key: str
    name: str
    began: float
    phase: str
    phase_began: float
    estimate_s: float | None
    kernels: tuple[int, int] = (0, 0)

    def said(self, elapsed_s: float) -> str:
        """The text that follows the elapsed time in messages: `` of about 35.0 s, C++ compilers, 64 of 120
        kernels``. Without the estimate once the job has taken longer.
        """
        estimate_s = self.estimate_s or 0.0
        of = f" of about {human_seconds(estimate_s)}" if elapsed_s < estimate_s else ""
        built, all_kernels = self.kernels
        kernels = f", {built:,} of {format_count(all_kernels, 'kernel')}" if all_kernels else ""
        return of + (f", {self.phase}" if self.phase else "") + kernels


class JobIndex:
    """Finds the job of a graph among the jobs of ``workers``."""

    def __init__(self, workers: Iterable[RecordedWorker]) -> None:
        # Maps each id and each key to its jobs. An id is never equal to a key, because the formats differ.
        self._found: dict[str, list[tuple[RecordedJob, RecordedWorker]]] = {}
        for worker in workers:
            for job in worker.jobs:
                for name in (job.id, job.key):
                    self._found.setdefault(name, []).append((job, worker))

    def of(self, graph: Mapping[str, Any]) -> tuple[RecordedJob, RecordedWorker] | None:
        """Return the job whose artifact the graph runs, and the job's worker.

        This is the job with the graph's id. If there is none, it is the last job for the graph's key that began before
        the graph was loaded.
        """
        loaded = max((span.began for span in spans_of(graph) if span.what == "load"), default=math.inf)
        # If a worker died or another host held the lease, several jobs have the same id.
        own = self._found.get(graph["id"])
        same = [
            (job, worker)
            for job, worker in self._found.get(graph.get("key", ""), ())
            if job.outcome not in ("failed", "parked", LOST) and job.began <= loaded
        ]
        return max(own or same, key=lambda found: found[0].began, default=None)


def waits(job: RecordedJob, worker: RecordedWorker, since: float) -> tuple[float, float]:
    """Return two times in seconds: how long, after ``since``, a job waited for its worker's start and in the daemon's
    queue.
    """
    began = max(job.queued, since)
    start_s = max(0.0, min(worker.ready, job.began) - max(worker.launched, began))
    return start_s, max(0.0, job.began - began - start_s)


class WorkerRecord:
    """Records the jobs of this worker process for one store. Thread-safe. Raises no errors, because no compile depends
    on it.
    """

    def __init__(self, root: Path, ready: float) -> None:
        self._root, self._ready = root, ready
        self._lock = threading.Lock()
        self._lines: lines.AppendedFile | None = None

    def begin(self, id: str, key: str, name: str, attempt: int, queued_s: float) -> JobRecord:
        now = time.time()
        with self._lock:
            try:
                if self._lines is None or not self._lines.file.exists():  # the store was cleared
                    self._lines = self._open()
            except OSError as error:
                self._lines = None
                log.info("this worker's jobs are not kept: %s", error)
        self.write(
            {
                "job": id,
                "key": key,
                "name": name,
                "attempt": attempt,
                "queued": now - queued_s,
                "began": now,
            }
        )
        return JobRecord(self, id)

    def _open(self) -> lines.AppendedFile:
        parent = lines.folder(self._root, JOBS)
        started = start_of(os.getpid())
        found = lines.AppendedFile(parent / f"{os.getpid()}-{started}.jsonl")
        lines.drop_oldest(parent, KEPT, found.file)
        found.append({"pid": os.getpid(), "started": started, "launched": process_start(), "ready": self._ready})
        return found

    def write(self, line: dict[str, object]) -> None:
        with self._lock:
            if self._lines is None:
                return
            try:
                self._lines.append(line)
            except OSError as error:
                self._lines = None
                log.info("this worker's jobs are not kept: %s", error)


class JobRecord:
    """The record of one job."""

    def __init__(self, worker: WorkerRecord, id: str) -> None:
        self._worker, self._job = worker, id
        self._phases: set[str] = set()
        self._share = -1  # the share of built kernels, in percent, in the last line about kernels
        self.spans: list[Span] = []

    def phase(self, name: str) -> None:
        """Record that the job has entered this phase. A phase is recorded once."""
        if name not in self._phases:
            self._phases.add(name)
            self._share = -1
            self._worker.write({"job": self._job, "phase": name, "at": time.time()})

    def kernels(self, built: int, of: int) -> None:
        """Record how many of the job's kernels are built. Writes at most one line per percent."""
        share = built * 100 // of
        if share != self._share:
            self._share = share
            self._worker.write({"job": self._job, "kernels": (built, of)})

    def spent(self, what: str, seconds: float) -> None:
        """Record that this thread has just spent ``seconds`` on ``what`` for the job."""
        self.spans.append(span_until_now(what, seconds))

    def end(self, outcome: str, reason: str) -> None:
        long = [span for span in self.spans if span.seconds >= SHORT_S]
        kept = sorted(long, key=lambda span: -span.seconds)[:MAX_SPANS]
        self._worker.write(
            {
                "job": self._job,
                "ended": time.time(),
                "outcome": outcome,
                "reason": reason,
                "spans": [
                    (span.what, round(span.began, 6), round(span.seconds, 6), span.thread)
                    for span in sorted(kept, key=lambda span: span.began)
                ],
            }
        )


def under_way(root: Path) -> list[UnderWay]:
    """The jobs that the store's workers are running."""
    known = workers(root)
    ended = sorted(
        (job for worker in known for job in worker.jobs if job.outcome == "published"), key=lambda job: job.ended
    )
    took: dict[str, list[float]] = {}
    for job in ended:
        took.setdefault(job.name, []).append(job.ended - job.began)
    found = []
    for worker in known:
        for now in [job for job in worker.jobs if not job.ended and worker.is_alive]:
            phase, at = now.phases[-1] if now.phases else ("", now.began)
            last = took.get(now.name, [])[-ESTIMATED_BY:]
            found.append(
                UnderWay(
                    worker.pid,
                    now.id,
                    now.key,
                    now.name,
                    now.began,
                    phase,
                    at,
                    statistics.median(last) if last else None,
                    now.kernels.get(phase, (0, 0)),
                )
            )
    return found


def workers(root: Path) -> list[RecordedWorker]:
    """The recorded workers of the store at ``root``, in the order of their starts. Files that cannot be trusted or
    read are left out.
    """
    return sorted(_workers(root), key=lambda worker: worker.launched)


# A cache of parsed files, for callers that read repeatedly (`status --watch`). Most files belong to ended workers and
# do not change.
_read: dict[Path, tuple[tuple[int, int], RecordedWorker]] = {}


def _workers(root: Path) -> Iterator[RecordedWorker]:
    with suppress(OSError, StoreError), trust.open_directory(root / JOBS) as fd:
        for file in os.listdir(fd):
            with suppress(OSError, StoreError, ValueError, TypeError, KeyError, AttributeError, IndexError):
                found = os.stat(file, dir_fd=fd, follow_symlinks=False)
                version, path = (found.st_mtime_ns, found.st_size), root / JOBS / file
                if path not in _read or _read[path][0] != version:
                    _read[path] = (version, _worker(lines.read(file, fd, shown=str(path))))
                worker = _read[path][1]
                for last in worker.jobs:
                    if not last.ended and not worker.is_alive:
                        last.ended, last.outcome = max(last.began, found.st_mtime), LOST
                yield worker


def _worker(found: list[dict[str, object]]) -> RecordedWorker:
    worker = RecordedWorker(**found[0])  # type: ignore[arg-type]
    for line in found[1:]:
        if "began" in line:
            # A worker runs at most AT_ONCE jobs at the same time. So an older job without an end has ended, but the
            # worker could not record this.
            for lost in [job for job in worker.jobs if not job.ended][: 1 - AT_ONCE]:
                lost.ended, lost.outcome = max(lost.began, float(line["began"])), LOST  # type: ignore[arg-type]
            worker.jobs.append(RecordedJob(id=line.pop("job"), **line))  # type: ignore[arg-type]
            continue
        # A parked job begins again later, with the same id.
        job = next((job for job in reversed(worker.jobs) if job.id == line["job"] and not job.ended), None)
        if job is None:
            continue
        elif "phase" in line:
            job.phases.append((str(line["phase"]), float(line["at"])))  # type: ignore[arg-type]
        elif "kernels" in line:
            built, of = line["kernels"]  # type: ignore[misc]
            job.kernels[job.phases[-1][0] if job.phases else ""] = int(built), int(of)  # type: ignore[has-type]
        else:
            job.ended, job.outcome, job.reason = line["ended"], line["outcome"], line["reason"]  # type: ignore[assignment]
            job.spans = [Span(*span) for span in line["spans"]]  # type: ignore[attr-defined]
    return worker
