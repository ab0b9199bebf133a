"""Says why graphs are pending: a worker compiles them, they wait in the daemon's queue, or no daemon runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from precompiled.cli.daemon import NOT_RUNNING, ask_daemon
from precompiled.core.config import Settings
from precompiled.core.errors import DaemonError
from precompiled.core.words import format_count, format_list, human_seconds
from precompiled.store.job_phases import LOST, UnderWay, under_way, workers
from precompiled.store.run_records import RunProcess, spans_of, way

if TYPE_CHECKING:
    from precompiled import wire

ANSWER_TIMEOUT_S = 2.0
_NO_DAEMON = "no daemon answers"
_AGAIN = "the next run submits it again"
_LATER = "After the compile, `precompiled explain` names the cause of the miss"


class PendingCauses:
    """The causes at one moment. Asks the daemon at most once, and only if no worker compiles a graph."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def count(self, graphs: Iterable[Mapping[str, Any]]) -> str:
        """How many of these graphs have each cause: ``1 compiling and 2 queued``. "" if all are about to be loaded."""
        causes = Counter(self._short(graph.get("key", "")) for graph in graphs)
        if causes[_NO_DAEMON]:
            return _NO_DAEMON
        return format_list([f"{number} {cause}" for cause, number in causes.items() if cause])

    def explain(self, process: RunProcess, graph: Mapping[str, Any], *, has_cause: bool = False) -> str:
        """Why the graph is pending, and what to do, as sentences. ``has_cause``: the cause of the miss is known."""
        said = self._sentence(graph.get("key", ""), process.is_alive)
        comes = self._short(graph.get("key", "")) in ("compiling", "queued")
        later = "" if has_cause else f". {_LATER}"
        if process.is_alive:
            return f"{said}{later}" if comes else said
        if comes:
            said += f". A run after the compile uses it{later}"
        said = said[0].upper() + said[1:]
        if not process.ended:
            return f"the process was killed before the graph was compiled. {said}"
        began = min((span.began for span in spans_of(graph)), default=process.ended)
        lasted = human_seconds(max(0.0, process.ended - began))
        return f"the program ended {lasted} after it needed the graph. {said}"

    def is_served(self, process: RunProcess, graph: Mapping[str, Any]) -> bool:
        """Whether later runs find an artifact of the graph: it was loaded, or its compile goes on."""
        if way(graph) != "pending":
            return way(graph) == "compiled"
        return self.is_coming(graph.get("key", ""), is_alive=process.is_alive)

    def is_coming(self, key: str, *, is_alive: bool) -> bool:
        """Whether the compile of a pending graph goes on. ``is_alive``: whether the graph's process runs."""
        return self._short(key) in ("compiling", "queued", *([""] if is_alive else []))

    def _short(self, key: str) -> str:
        if key in self._compiling:
            return "compiling"
        if isinstance(self._daemon, DaemonError):
            return _NO_DAEMON
        return "queued" if self._daemon.queue_depth else ""

    def _sentence(self, key: str, is_alive: bool) -> str:
        cause = self._short(key)
        if cause == "compiling":
            job = self._compiling[key]
            elapsed_s = max(0.0, time.time() - job.began)
            return f"a worker is compiling it ({human_seconds(elapsed_s)} so far{job.said(elapsed_s)})"
        if isinstance(self._daemon, DaemonError):
            if self._daemon.code not in NOT_RUNNING:
                return f"the daemon does not answer: {self._daemon.message}. `precompiled doctor` says what to do"
            return f"no daemon runs, so {'`precompiled doctor` says why' if is_alive else _AGAIN}"
        if cause:
            queue = format_count(self._daemon.queue_depth, "graph waits", "graphs wait")
            at_work = sum(worker.state in ("idle", "busy") for worker in self._daemon.workers)
            until = f"for {format_count(at_work, 'worker')}" if at_work else "until a worker has started"
            return f"{queue} in the daemon's queue {until}; `precompiled status --watch` shows the progress"
        if is_alive:
            return "the daemon has just received it, or the program is about to load it"
        jobs = (job for worker in workers(self._settings.cache_dir) for job in worker.jobs if job.key == key)
        lost = any(job.outcome == LOST for job in jobs)
        why = "its worker was stopped before the compile ended" if lost else "the daemon does not compile it"
        return f"{why}, so {_AGAIN}"

    @cached_property
    def _compiling(self) -> dict[str, UnderWay]:
        return {job.key: job for job in under_way(self._settings.cache_dir)}

    @cached_property
    def _daemon(self) -> wire.StatusReply | DaemonError:
        from precompiled import wire

        try:
            found: wire.StatusReply = ask_daemon(self._settings, wire.Status(), ANSWER_TIMEOUT_S)
        except DaemonError as error:
            return error
        return found
