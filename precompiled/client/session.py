"""Holds the state of a client process: its settings, store, connection to the daemon, and graphs.

``current()`` makes the session when Dynamo begins to trace. A fork's child keeps the parent's session and graphs, with
new locks and threads. The child submits a pending graph at the graph's first call.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from precompiled import parts
from precompiled.client import baking, first_calls
from precompiled.client.connection import DaemonConnection
from precompiled.client.count_sender import CountSender
from precompiled.client.daemon_link import daemon_reachable
from precompiled.client.daemon_starter import DaemonStarter
from precompiled.client.dispatch import MAX_REQUESTS
from precompiled.client.eager_line import EagerLine
from precompiled.client.graph_outcomes import GraphOutcomes
from precompiled.client.hit_line import HitLine
from precompiled.client.ledger import GraphCalls, GraphReport, Ledger
from precompiled.client.pending import Pending
from precompiled.client.process import PROCESS, RecorderProtocol
from precompiled.client.run_recorder import RunRecord
from precompiled.client.safe_points import SafePoints
from precompiled.client.terminal_lines import TerminalLines
from precompiled.core import bypassing
from precompiled.core.errors import NotServed, code_of
from precompiled.core.paths import TARGET_VARIABLE
from precompiled.core.spans import WAITED_FOR_REMOTE, span_until_now
from precompiled.store import run_records
from precompiled.store.artifact_format import variant_label
from precompiled.store.artifacts import Artifact, Store
from precompiled.store.crashes import refuse_crashing
from precompiled.version import switched_off

if TYPE_CHECKING:
    from precompiled.core.config import Settings

log = logging.getLogger("precompiled")

# At exit, a process waits at most this many seconds until a running daemon has received the last submits and counts. So
# the daemon compiles a graph even if the process ends right after the graph's first call.
FLUSH_S = 3.0


class Session:
    """The state of one client process. Thread-safe."""

    def __init__(self) -> None:
        self.settings = PROCESS.settings()
        self._counts = CountSender(self._first_calls_over)
        self._hit_line = HitLine(TerminalLines(self.settings.progress))
        self._eager_line = EagerLine(TerminalLines(self.settings.progress))
        self.ledger = Ledger(self._counts.changed)
        self._run = RunRecord(self.settings.cache_dir)
        self.connection = DaemonConnection(self.settings)
        # Set if watch mode started this process to capture graphs (docs/guides/watch.md). Such a process is not served.
        self.recorder: RecorderProtocol | None = PROCESS.recorder
        # True if `--target` runs this process, to make artifacts for a GPU that this host lacks. This host cannot run
        # their kernels, so all calls run eager (docs/decisions/0046).
        self.stays_eager = TARGET_VARIABLE in os.environ
        # A process that only captures graphs for watch mode writes no run record.
        self.outcomes = GraphOutcomes(self.ledger, self._run if self.recorder is None else None)
        self.store = Store(self.settings.cache_dir, self.settings.base, self.outcomes.base_left_out)
        for base in self.store.bases:
            if not os.path.isdir(base.root):
                self.outcomes.base_left_out(f"{base.root} is not a directory. Correct the setting `base`")
        self.daemon = DaemonStarter(lambda: self.settings, self.connection, self.store)
        self.pending = Pending(self)
        self.safe_points = SafePoints()
        self._left = False
        # In a fork's child: how many function reports the child inherited. The parent records these.
        self._inherited = 0
        self._begin_remote()
        for artifact in refuse_crashing(self.store, self.settings.failure_ttl_s):
            self.withdraw(artifact)

    @property
    def is_off(self) -> bool:
        """Whether the settings or the program switch precompiled off at this moment."""
        return self.settings.mode == "off" or switched_off(os.environ) or bypassing.is_active()

    @property
    def requires(self) -> bool:
        """Whether the setting ``require`` forbids graphs to run eager or to be compiled in process.

        The setting has no effect in a capture of watch mode (docs/guides/watch.md) or with `--target`, because neither
        runs compiled code.
        """
        return self.settings.require and self.recorder is None and not self.stays_eager

    def refuse(self, calls: GraphCalls, code: str, message: str) -> None:
        """Raise NotServed if ``require`` is set. The error has the graph's own reason, or ``code`` if there is none.

        Call this method for a call that waited for an artifact and got none.
        """
        if self.requires:
            report = calls.report
            raise NotServed(report.name, report.reason or code, report.message if report.reason else message)

    def refuse_sizes(self, calls: GraphCalls) -> None:
        """Like ``refuse``, if no job was submitted for the sizes of a call. If ``require`` is not set, the caller
        compiles in process, so count a fallback.
        """
        if self.settings.mode == "lookup":
            code, said = "lookup-only", "the mode is lookup"
        elif (problem := self.daemon.problem()) is not None:
            code, said = problem.code, str(problem)
        else:
            code, said = "too-many-variants", f"a graph may submit only {MAX_REQUESTS} more per process"
        self.refuse(calls, code, f"no artifact serves these sizes, and {said}")
        self.ledger.count_reason("fallbacks", code)

    # ------------------------------------------------------------------ the remote

    def withdraw(self, artifact: Artifact) -> None:
        """Remove a refused artifact from the remote, so that other hosts do not load it. Best effort."""
        remote = parts.REMOTE.get() if self.settings.remote else None
        if remote is not None:
            remote.withdraw(self.store.root, artifact.manifest.key, variant_label(artifact.manifest))

    def _begin_remote(self) -> None:
        """Start the helper of a remote or farm, if the hook has not started it. Workers need the helper for the first
        graph.
        """
        if not self.settings.has_helper:
            return

        def failed(error: Exception) -> None:
            what = "remote" if self.settings.remote else "farm"
            code = code_of(error, f"{what}-unusable")
            self.ledger.count_reason("fallbacks", code)
            self.outcomes.warn_once(code, f"the {what} is not used ({code}): {error or type(error).__name__}")

        remote = parts.REMOTE.get()
        if remote is None:
            failed(ImportError(f"{parts.REMOTE.module} is not installed"))
        elif (found := remote.begin(self.settings)) is not None:
            found.on_problem(failed)

    def came_ahead(self) -> bool:
        """Wait for a limited time until the helper has fetched objects. Returns whether the store may have new ones."""
        if PROCESS.ahead is None:
            return False
        started = time.perf_counter()
        try:
            return PROCESS.ahead.wait()
        finally:
            self.outcomes.note_wait(span_until_now(WAITED_FOR_REMOTE, time.perf_counter() - started))

    def tell_used(self) -> None:
        """Send the helper the keys and packages that this process used. The remote keeps a list of them."""
        if PROCESS.ahead is None or self.recorder is not None:
            return
        served = [report for report in self.reports() if run_records.way(vars(report)) == "compiled"]
        PROCESS.ahead.used(
            {report.key for report in served},
            {report.key for report in served if report.source == "swap"},
            PROCESS.packages.used if PROCESS.packages is not None else (),
            PROCESS.kernels.used if PROCESS.kernels is not None else (),
        )

    def loaded_from(self, artifact: Artifact) -> None:
        """Count the artifact if it came from a base store."""
        if not self.store.is_own(artifact):
            self.ledger.count_reason("from_base", str(artifact.root))

    def began_in_pieces(self, report: GraphReport) -> None:
        """Note that the store had all pieces of a pending graph, for the line about cache hits."""
        self._hit_line.began_in_pieces(report.id)

    def _first_calls_over(self) -> None:
        self.tell_counts()
        self._hit_line.look(self.reports())
        self._eager_line.look(self.reports())

    def tell_counts(self) -> None:
        """Send this process's counts to the daemon, best effort."""
        if not daemon_reachable(self.settings):
            return
        counts = self.ledger.take_counts()
        if counts:
            from precompiled import wire

            self.connection.tally(wire.Tally(pid=os.getpid(), **counts))

    # ------------------------------------------------------------------ for the whole process (process.py)

    def wait(self, timeout_s: float | None, *, blocks_program: bool = True) -> bool:
        return self.pending.wait(timeout_s, blocks_program=blocks_program)

    def reports(self, start: int = 0) -> list[GraphReport]:
        return self.ledger.reports(start)

    def flush(self, timeout_s: float) -> bool | None:
        return self.connection.flush(timeout_s) if daemon_reachable(self.settings) else None

    # ------------------------------------------------------------------ ends

    def after_fork(self) -> None:
        """In a fork's child, make new locks and threads. The graphs stay."""
        self.outcomes.after_fork()
        self.daemon.after_fork()
        self._left = False
        self._inherited = len(_functions())
        self._counts.after_fork()
        self._hit_line = HitLine(TerminalLines("off"))  # the parent prints the lines
        self._eager_line = EagerLine(TerminalLines("off"))
        self.ledger.after_fork()
        self._run.after_fork()
        self.pending.after_fork()
        self.safe_points.after_fork()
        first_calls.after_fork()

    def at_exit(self) -> None:
        if self._left:
            return  # multiprocessing's finalizer and atexit both call this function
        self._left = True
        first_calls.close()
        if self.settings.mode != "off" and self.recorder is None:
            packages = PROCESS.packages
            files, modules = (packages.files(), packages.modules()) if packages is not None else ({}, {})
            self._run.end(self.reports(), _functions()[self._inherited :], files, modules)
        self._hit_line.look(self.reports(), at_end=True)
        self._eager_line.look(self.reports())
        self.tell_counts()
        self.tell_used()
        if self.flush(FLUSH_S) is False:
            log.info("the daemon did not receive all messages within %s s", FLUSH_S)
        self.pending.close(FLUSH_S)
        self.connection.close()


def _functions() -> list[Any]:
    """The reports of the functions that Dynamo traced or a package served."""
    return [*PROCESS.failed_traces, *(PROCESS.packages.reports if PROCESS.packages is not None else ())]


_session_lock = threading.Lock()


def current() -> Session:
    """Return this process's session. The first call makes it."""
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
    # Without the setting ``log``, do not touch logging. The program may configure it.
    if settings.origins.get("log", "default") != "default" and not log.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("precompiled %(process)d %(levelname)s: %(message)s"))
        log.addHandler(handler)
        log.setLevel(settings.log.upper())


def _at_exit() -> None:
    if isinstance(PROCESS.session, Session):
        PROCESS.session.at_exit()


def _at_exit_of_worker(_: object = None) -> None:
    """Register the exit function in a forked child of multiprocessing, so that the child's last submits are sent.

    Such a child runs multiprocessing's finalizers and ends with os._exit, which skips atexit.
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
        if util is not None:  # a child of multiprocessing drops inherited finalizers before it runs these hooks
            util.register_after_fork(session, _at_exit_of_worker)


os.register_at_fork(after_in_child=_after_fork_in_child)
