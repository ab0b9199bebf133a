"""A process's settings, store, connection to the daemon, and graphs. Made when Dynamo begins to trace.

A fork's child gets a session of its own, with the same graphs, and submits the pending ones itself.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import warnings
from typing import TYPE_CHECKING

from precompiled.client import baking
from precompiled.client.connection import Connection
from precompiled.client.count_sender import CountSender
from precompiled.client.dispatch import MAX_REQUESTS
from precompiled.client.ledger import GraphCalls, GraphReport, Ledger
from precompiled.client.link import daemon_reachable
from precompiled.client.pending import Pending
from precompiled.client.process import PROCESS, Recorder
from precompiled.client.runs import RunRecord
from precompiled.client.safe_points import SafePoints
from precompiled.core.errors import (
    COMPILE_ERROR,
    NO_COMPILER,
    NO_COMPILER_ACTION,
    DaemonError,
    NotServed,
    PrecompiledError,
)
from precompiled.core.paths import TARGET_VARIABLE
from precompiled.core.spans import Span
from precompiled.store import runs
from precompiled.store.artifacts import Artifact, Store
from precompiled.torch_internals.client import structured_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from precompiled.client.start import Starting
    from precompiled.core.config import Settings

log = logging.getLogger("precompiled")

# At exit, for the last graphs and counts to be handed over: the graph of a client that ends right after its first call
# must be compiled, too. Only waited for while a daemon runs and has not answered.
FLUSH_S = 3.0
# How long the first graph of a host waits for the daemon that it starts; capture and lookup go on meanwhile.
START_S = 10.0


class Session:
    """One process's state. Thread-safe."""

    def __init__(self) -> None:
        self.settings = PROCESS.settings()
        self.store = Store(self.settings.cache_dir, self.settings.base, self._left_out)
        self._counts = CountSender(self.tell_counts)
        self.ledger = Ledger(self._counts.changed)
        self.connection = Connection(self.settings)
        self.pending = Pending(self)
        self.safe_points = SafePoints()
        # Set where this process is a watch's capture (docs/guides/watch.md): graphs are captured, and not served.
        self.recorder: Recorder | None = PROCESS.recorder
        # Set below `--target`: what is compiled is for a GPU that is not here. Kernels do not run there, but operators
        # do, so calls run eager for ever: values are as near to real ones as they can be (docs/decisions/0046).
        self.stays_eager = TARGET_VARIABLE in os.environ
        self._run = RunRecord(self.settings.cache_dir)
        self._starting: Starting | None = None
        self._without_daemon: DaemonError | None = None
        self._warned: set[str] = set()
        self._left = False
        self._inherited = 0  # reports of functions that the parent had before a fork: they are in its run
        self._lock = threading.Lock()
        self._begin_remote()

    @property
    def requires(self) -> bool:
        """Whether no graph may be compiled in process, or run eager. It may in a watch's capture, and for a device that
        is not here: neither runs what is compiled.
        """
        return self.settings.require and self.recorder is None and not self.stays_eager

    def refuse(self, calls: GraphCalls, code: str, message: str) -> None:
        """For a call that waited for an artifact in vain: raises NotServed where one is required, for the graph's own
        reason or ``code``.
        """
        if self.requires:
            report = calls.report
            raise NotServed(report.name, report.reason or code, report.message if report.reason else message)

    def not_served(self, calls: GraphCalls, code: str, message: str) -> None:
        """With ``require``: the graph is not run, and counts as that, once."""
        if calls.report.source != "error":
            self.ledger.count_reason("not_served", code)
        calls.refused(code, message)

    def stays_eager_without_compiler(self, report: GraphReport, problem: str) -> None:
        """Count and say that a graph runs eager because this host builds no kernels."""
        report.reason, report.message = NO_COMPILER, problem
        self.ledger.count_reason("fallbacks", NO_COMPILER)
        self.warn_once(NO_COMPILER, f"graphs stay eager ({NO_COMPILER}): {problem}. {NO_COMPILER_ACTION}")

    def refuse_sizes(self, calls: GraphCalls) -> None:
        """The same for sizes for which no artifact was asked for. Counted, where they are compiled in process."""
        if self.settings.mode == "lookup":
            code, said = "lookup-only", "the mode is lookup"
        elif (problem := self.daemon_problem()) is not None:
            code, said = problem.code, str(problem)
        else:
            code, said = "too-many-variants", f"a graph of a process asks for {MAX_REQUESTS} more at most"
        self.refuse(calls, code, f"no artifact serves these sizes, and {said}")
        self.ledger.count_reason("fallbacks", code)

    # ------------------------------------------------------------------ the daemon

    def begin_daemon(self) -> None:
        """Start a daemon where none runs, and do not wait for it: the graph is captured and looked up meanwhile."""
        if self._without_daemon is not None or not self.settings.starts_daemon or daemon_reachable(self.settings):
            return
        if self.connection.was_told_to_stop():
            return
        with self._lock:
            if self._starting is None:
                from precompiled.client.start import Starting

                self._starting = Starting(self.settings)

    def _begin_remote(self) -> None:
        """Have the helper of a remote or a farm run, where the hook has not seen to it: before a worker asks it."""
        if not self.settings.has_helper:
            return
        from precompiled.client import ahead

        def failed(error: Exception) -> None:
            code = "remote-unusable" if self.settings.remote else "farm-unusable"
            self.ledger.count_reason("fallbacks", code)
            log.warning("no helper can be started (%s): %s", code, error)

        found = ahead.begin(self.settings)
        if found is not None:
            found.on_problem(failed)

    def came_ahead(self) -> bool:
        """Whether something has come from the remote that this process may have missed: wait for what is on its way,
        for a bounded time (docs/decisions/0047).
        """
        return PROCESS.ahead is not None and PROCESS.ahead.wait()

    def tell_used(self) -> None:
        """Have what this process used listed for the next host, where there is a remote."""
        if PROCESS.ahead is None or self.recorder is not None:
            return
        served = [report for report in self.reports() if runs.way(vars(report)) == "compiled"]
        PROCESS.ahead.used(
            {report.key for report in served}, {report.key for report in served if report.source == "swap"},
            PROCESS.packages.used if PROCESS.packages is not None else (),
        )  # fmt: skip

    def expect_graph(self) -> None:
        """Dynamo begins to trace: where the store is empty, have daemon and worker start meanwhile (decision 0016)."""
        if self.settings.mode not in ("eager", "wait") or not self.store.is_empty():
            return
        self.begin_daemon()
        if self._starting is None and not daemon_reachable(self.settings):
            return  # none runs, and none may be started
        from precompiled import wire
        from precompiled.graph import environment

        without_gpu = self.settings.compile_without_gpu
        try:
            interpreter, device = environment.worker_for(environment.likely_device(), without_gpu=without_gpu)
        except PrecompiledError:
            return  # the graph will say it
        self.connection.expect(wire.Expect(interpreter, device))

    def daemon_problem(self) -> DaemonError | None:
        """None when a daemon runs; else why none does. One is started once: a program must not try again for every
        graph. But one that came later, or took long to start, serves the graphs that come then.
        """
        if daemon_reachable(self.settings):
            return None
        if self._without_daemon is not None:
            return self._without_daemon
        if self.connection.was_told_to_stop():
            # For now: there may be another by the next graph.
            return DaemonError("the daemon was stopped", "Run `precompiled doctor`")
        if self._starting is not None:
            outcome = self._starting.result(START_S)
            if outcome.runs:
                return None  # if it has ended since, the connection starts another
            problem = outcome.error()
        else:
            said = f"no daemon listens in {self.settings.runtime_dir}, and starting one is switched off"
            problem = DaemonError(said, "Run `precompiled doctor`")
        self._without_daemon = problem
        return problem

    def warn_once(self, code: str, text: str) -> None:
        """Warn, once per code and process."""
        with self._lock:
            if code in self._warned:
                return
            self._warned.add(code)
        try:
            # Of no line: who reads it has no use for one of ours, and most are said by a thread that has none of his.
            warnings.warn_explicit(f"precompiled: {text}", RuntimeWarning, "precompiled", 0)
        except Warning:  # `-W error`: a warning of ours must not become the user's exception
            log.warning("%s", text)

    def _left_out(self, reason: str) -> None:
        """Something of a base store cannot be used: it is as if it were not there."""
        self.ledger.count_reason("fallbacks", "base-unusable")
        log.info("%s", reason)
        self.warn_once("base-unusable", f"a base store is not used as it is (base-unusable): {reason}")

    def loaded_from(self, artifact: Artifact) -> None:
        """Count where an artifact came from."""
        if not self.store.is_own(artifact):
            self.ledger.count_reason("from_base", str(artifact.root))

    def stand_in_raised(self, calls: GraphCalls, error: Exception, served: bool) -> None:
        """An eager run has raised: its call waits for compiled code, or compiled code has ``served`` the call."""
        report, text = calls.report, (str(error).strip().splitlines() or [""])[0]
        report.message = f"its eager run raised {type(error).__name__}: {text}; its calls wait for compiled code"
        if served:
            report.reason = report.reason or "stand-in-raised"
            self.ledger.count_reason("fallbacks", "stand-in-raised")
        self.note(calls.snapshot())

    def compiled_here(self, calls: GraphCalls) -> None:
        """Note that a graph was compiled in this process. Where a worker had failed at it, the failure was ours."""
        report = calls.report
        report.source = "inline"
        worker_only = report.reason == COMPILE_ERROR
        if worker_only:
            report.reason = "worker-only-error"
        self.note(calls.snapshot())
        if not worker_only:
            return
        self.ledger.count_reason("fallbacks", "worker-only-error")
        first_line = (report.message.splitlines() or [""])[0]
        said = f"a worker failed at {report.name}, which this process compiles ({report.reason}): {first_line}"
        self.warn_once(report.reason, said)

    def note(self, report: GraphReport) -> None:
        """Keep, for people, what has become of a graph."""
        if self.recorder is None:
            self._run.note(report)
        # By id, as the daemon's log has it.
        log.info("graph %s %s: %s%s (lookup %.3f s, load %.3f s), key %s", report.id, report.name,
                 report.source or report.state, f" ({report.reason})" if report.reason else "", report.lookup_s,
                 report.load_s, report.key[:12] or "-")  # fmt: skip
        if structured_trace.is_on():
            structured_trace.graph(_way(report), vars(report))

    def keep(self, key: str, program: Callable[[], bytes]) -> None:
        """Keep, for people, the program of a graph that was a miss, and is sent to nobody."""
        if self.recorder is None:
            self._run.keep(key, program)

    def note_frame(self, name: str, span: Span) -> None:
        """Keep, for people, what a frame took Dynamo or a package."""
        if self.recorder is None:
            self._run.frame(name, span)

    def tell_counts(self) -> None:
        """Send this process's counts to the daemon, best effort."""
        if not daemon_reachable(self.settings):
            return
        counts = self.ledger.take_counts()
        if counts:
            from precompiled import wire

            self.connection.tally(wire.Tally(pid=os.getpid(), **counts))

    # ------------------------------------------------------------------ for the whole process (process.py)

    def wait(self, timeout_s: float | None) -> bool:
        return self.pending.wait(timeout_s)

    def reports(self, start: int = 0) -> list[GraphReport]:
        return self.ledger.reports(start)

    def flush(self, timeout_s: float) -> bool | None:
        return self.connection.flush(timeout_s) if daemon_reachable(self.settings) else None

    # ------------------------------------------------------------------ ends

    def after_fork(self) -> None:
        """In the child: renew the locks and threads; the graphs stay."""
        self._lock = threading.Lock()
        self._starting = None
        self._left = False
        self._inherited = len(PROCESS.packages.reports) if PROCESS.packages is not None else 0
        self._counts.after_fork()
        self.ledger.after_fork()
        self._run.after_fork()
        self.pending.after_fork()
        self.safe_points.after_fork()

    def at_exit(self) -> None:
        if self._left:
            return  # multiprocessing's finalizer has called this, and now atexit does
        self._left = True
        if self.settings.mode != "off" and self.recorder is None:
            packages = PROCESS.packages
            functions, files = (packages.reports, packages.files()) if packages is not None else ((), {})
            self._run.end(self.reports(), functions[self._inherited :], files)
        self.tell_counts()
        self.tell_used()
        if self.flush(FLUSH_S) is False:
            log.info("the daemon did not take everything within %s s", FLUSH_S)
        self.pending.close(FLUSH_S)
        self.connection.close()


def _way(report: GraphReport) -> str:
    """How a graph runs, as torch's structured trace calls it."""
    found = runs.way(vars(report))
    if found == "compiled":
        return str(report.source)
    return "miss" if found == "pending" else found.replace(" ", "_")


_session_lock = threading.Lock()


def current() -> Session:
    """This process's session."""
    found = PROCESS.session
    if found is None:
        with _session_lock:
            found = PROCESS.session
            if found is None:
                PROCESS.session = found = Session()
                baking.begin(found)
                _configure_log(found.settings)
                atexit.register(_at_exit)
                _at_exit_of_worker()
    assert isinstance(found, Session)
    return found


def _configure_log(settings: Settings) -> None:
    # Where ``log`` is not set, the program's own logging decides.
    if settings.origins.get("log", "default") != "default" and not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("precompiled %(process)d %(levelname)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(settings.log.upper())


def _at_exit() -> None:
    if isinstance(PROCESS.session, Session):
        PROCESS.session.at_exit()


def _at_exit_of_worker(_: object = None) -> None:
    """For a forked child of multiprocessing, which ends with os._exit: it runs finalizers, but no atexit.

    Without this the submits of a child that ends at once would be lost.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _at_exit, exitpriority=0)


def _after_fork_in_child() -> None:
    global _session_lock  # noqa: PLW0603 - a thread of the parent may have held it
    _session_lock = threading.Lock()
    session = PROCESS.session
    if isinstance(session, Session):
        session.after_fork()
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # a child of multiprocessing forgets inherited finalizers, and then calls this
            util.register_after_fork(session, _at_exit_of_worker)


os.register_at_fork(after_in_child=_after_fork_in_child)
