"""Records the outcomes of a process's graphs: as counts and warnings, in the run record and in the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from precompiled.client.ledger import GraphCalls, GraphReport, Ledger
from precompiled.client.run_recorder import RunRecord
from precompiled.core import user_warnings
from precompiled.core.errors import COMPILE_ERROR, NO_COMPILER, NO_COMPILER_ACTION
from precompiled.core.spans import Span
from precompiled.store import run_records
from precompiled.torch_internals.client import structured_trace

log = logging.getLogger("precompiled")


class GraphOutcomes:
    """Records the outcomes of a session's graphs. Thread-safe.

    ``run``: None if this process writes no run record.
    """

    def __init__(self, ledger: Ledger, run: RunRecord | None) -> None:
        self._ledger, self._run = ledger, run
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    def not_served(self, calls: GraphCalls, code: str, message: str) -> None:
        """Record that ``require`` kept a graph from running. Counts a graph once."""
        if calls.report.source != "error":
            self._ledger.count_reason("not_served", code)
        calls.refused(code, message)

    def stays_eager_without_compiler(self, report: GraphReport, problem: str) -> None:
        """Count, and warn once, that a graph runs eager because this host cannot build kernels."""
        report.reason, report.message = NO_COMPILER, problem
        self._ledger.count_reason("fallbacks", NO_COMPILER)
        self.warn_once(NO_COMPILER, f"graphs stay eager ({NO_COMPILER}): {problem}. {NO_COMPILER_ACTION}")

    def warn_missing_compiler(self, problem: str) -> None:
        """Warn, once, that graphs stay eager, because the host lacks a compiler (``problem``)."""
        self.warn_once(
            NO_COMPILER, f"graphs that need a C++ compiler stay eager ({NO_COMPILER}): {problem}. {NO_COMPILER_ACTION}"
        )

    def warn_once(self, code: str, text: str) -> None:
        """Warn, once per code and process."""
        with self._lock:
            if code in self._warned:
                return
            self._warned.add(code)
        try:
            user_warnings.warn(text)
        except Warning:  # with `-W error`, the user's program must not get an exception
            log.warning("%s", text)

    def warn_stays_eager(self, name: str, code: str, message: str) -> None:
        """Warn, once per reason, that the graph ``name`` stays eager."""
        first = message.partition("\n")[0]
        self.warn_once(code, f"a graph stays eager ({code}): {name}: {first}")

    def base_left_out(self, reason: str) -> None:
        """Count and report an unusable artifact or package of a base store. The lookup ignores it."""
        self._ledger.count_reason("fallbacks", "base-unusable")
        log.info("%s", reason)
        self.warn_once("base-unusable", f"a base store is not fully used (base-unusable): {reason}")

    def stand_in_raised(self, calls: GraphCalls, error: Exception, served: bool) -> None:
        """Record that an eager run raised. ``served``: whether compiled code has served the call. Until then, the call
        waits.
        """
        report, text = calls.report, (str(error).strip().splitlines() or [""])[0]
        report.message = f"an eager run raised {type(error).__name__}: {text}; calls wait for compiled code"
        if served:
            report.reason = report.reason or "stand-in-raised"
            self._ledger.count_reason("fallbacks", "stand-in-raised")
        self.note(calls.snapshot())

    def went_back(self, calls: GraphCalls, code: str, message: str) -> None:
        """Record that eager code serves a graph for good, because its compiled code is slower or wrong."""
        calls.went_back(code, message)
        self._ledger.count_reason("fallbacks", code)
        self.note(calls.snapshot())

    def compiled_here(self, calls: GraphCalls) -> None:
        """Record that a graph was compiled in this process. If a worker failed to compile the graph, the cause was the
        worker (``worker-only-error``).
        """
        report = calls.report
        report.source = "inline"
        worker_only = report.reason == COMPILE_ERROR
        if worker_only:
            report.reason = "worker-only-error"
        self.note(calls.snapshot())
        if not worker_only:
            return
        self._ledger.count_reason("fallbacks", "worker-only-error")
        first_line = (report.message.splitlines() or [""])[0]
        said = f"a worker failed to compile {report.name}, so this process compiles it ({report.reason}): {first_line}"
        self.warn_once(report.reason, said)

    def note(self, report: GraphReport) -> None:
        """Write a graph's state to the run record, the log and torch's structured trace."""
        if self._run is not None:
            self._run.note(report)
        # The daemon's log has the same id.
        log.info(
            "graph %s %s: %s%s (lookup %.3f s, load %.3f s), key %s",
            report.id,
            report.name,
            report.source or report.state,
            f" ({report.reason})" if report.reason else "",
            report.lookup_s,
            report.load_s,
            report.key[:12] or "-",
        )
        if structured_trace.is_on():
            structured_trace.graph(_way(report), vars(report))

    def keep(self, key: str, program: Callable[[], bytes]) -> None:
        """Store the captured graph of a miss that has no artifact, for ``precompiled explain``."""
        if self._run is not None:
            self._run.keep(key, program)

    def drop(self, key: str) -> None:
        """Remove the captured graph of a miss that is no longer pending, if this process stored it."""
        if self._run is not None:
            self._run.drop(key)

    def note_frame(self, name: str, span: Span) -> None:
        """Record the time that Dynamo or a package took for a frame."""
        if self._run is not None:
            self._run.frame(name, span)

    def note_wait(self, span: Span) -> None:
        """Record that the program waited, for pending graphs or for the remote."""
        if self._run is not None:
            self._run.waited(span)

    def after_fork(self) -> None:
        """In a fork's child, make a new lock, because a thread of the parent may hold the old lock."""
        self._lock = threading.Lock()


def _way(report: GraphReport) -> str:
    """How a graph runs, in the words of torch's structured trace."""
    found = run_records.way(vars(report))
    if found == "compiled":
        return str(report.source)
    return "miss" if found == "pending" else found.replace(" ", "_")
