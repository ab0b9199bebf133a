"""Awaits the artifacts of pending graphs in a background thread, which ends when no graph is pending.

The daemon's report of a published graph (``on_reply``) wakes the thread. Other hosts and in-process compiles publish
artifacts without a report, so the thread also checks each awaited name with stat. The thread loads the artifact and
replaces one reference, so the next call runs compiled.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from precompiled.client.awaited import Awaited, SessionView
from precompiled.client.daemon_link import daemon_reachable
from precompiled.client.fallback import compile_now, fall_back
from precompiled.client.progress import Progress
from precompiled.client.swap import Event, Instruction, State
from precompiled.client.swapping import swap_in
from precompiled.client.terminal_lines import TerminalLines
from precompiled.core import forking, interruptions
from precompiled.core.errors import Bypass, StoreError, code_of
from precompiled.core.reasons import Outcome, outcome
from precompiled.core.spans import WAITED, span_until_now
from precompiled.store.artifact_format import FAILED_SUFFIX
from precompiled.store.artifacts import Artifact
from precompiled.torch_internals.client import openmp_threads
from precompiled.torch_internals.graph.symbolic_sizes import guard_check

if TYPE_CHECKING:
    from precompiled import wire

log = logging.getLogger("precompiled.client.pending")

# Seconds between two checks of the store, if the daemon reports nothing.
LOOK_S = 2.0
LOOK_ALONE_S = 0.5  # seconds between two checks while no daemon answers
# After this many seconds without a daemon, the client compiles in process. Otherwise graphs would stay eager to the
# program's end. The restart of a daemon takes less time, even on a host with many clients.
ALONE_S = 60.0


class Pending:
    """The awaited graphs of a process. Thread-safe."""

    def __init__(self, session: SessionView) -> None:
        self._session = session
        settings = session.settings
        waits = settings.mode == "wait" or settings.require
        self._progress = Progress(TerminalLines(settings.progress), waits=waits, raises=settings.require)
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._awaited: dict[str, Awaited] = {}
        self._refused: list[tuple[str, str, str]] = []
        self._thread: threading.Thread | None = None
        self._hint = False
        self._closing = False
        self._blocked = 0  # threads of the program in ``wait``
        self._dormant: list[Awaited] = []  # inherited graphs: a fork's child awaits them only after its first call

    def add(self, awaited: Awaited) -> None:
        """Await this graph's artifact from now on. Raises RuntimeError if no thread can start."""
        with self._changed:
            self._start()
            self._awaited[awaited.id] = awaited
            self._hint = True
            self._changed.notify_all()

    def wait(self, timeout_s: float | None, *, blocks_program: bool = True) -> bool:
        """Wait until no graph is awaited. Returns false after ``timeout_s`` seconds.

        ``blocks_program``: whether the run record counts the wait. It is False in background threads.
        """
        for item in list(self._dormant):
            self._take_up(item)
        with self._changed:
            if not self._awaited:
                return True
            self._blocked += blocks_program
        started = time.perf_counter()
        try:
            with self._changed:
                return self._changed.wait_for(lambda: not self._awaited, timeout_s)
        finally:
            with self._changed:
                self._blocked -= blocks_program
            if blocks_program:
                self._session.outcomes.note_wait(span_until_now(WAITED, time.perf_counter() - started))

    def await_artifact(self, item: Awaited) -> None:
        """Wait until the artifact is loaded, because a call must not run eager. If no artifact comes, compile the graph
        now.

        Raises NotServed if ``require`` is set and no artifact came.
        """
        if not item.done.is_set():
            item.waited_for, item.background = True, False
            try:
                self._resubmit(item)
            except Exception as error:  # noqa: BLE001 - without a new submit, the job continues without priority
                interruptions.pass_on(error)
        self.stand_still(item)
        if item.swap.state is State.COMPILED:
            return
        said = f"no artifact was ready within {self._session.settings.wait_s:g} s"
        self._session.refuse(item.calls, "not-in-time", said)
        if outcome(item.calls.report.reason, runs=False) is not Outcome.EAGER:
            compile_now(self._session, item)

    def end_idle_priority(self, item: Awaited) -> None:
        """Submit a graph again with normal priority, because its pieces no longer serve it."""
        if not item.background:
            return
        item.background = False
        try:
            self._resubmit(item)
        except Exception as error:  # noqa: BLE001 - without a new submit, the job continues at idle priority
            interruptions.pass_on(error)

    def stand_still(self, item: Awaited, until: threading.Event | None = None) -> None:
        """Block the program's thread until the artifact is loaded or has failed, at most ``wait_s`` seconds.

        ``until``: an event that also ends the wait.
        """
        done = until or item.done
        report = item.calls.report
        if not done.is_set():
            # If the process ends during this wait, its run record must list the graph.
            self._session.outcomes.note(item.calls.snapshot())
        is_over = False
        try:
            with item.calls.timed("wait"):
                done.wait(self._session.settings.wait_s)
            is_over = True
        finally:
            if not is_over and not done.is_set():  # Ctrl-C
                report.message = "interrupted during the wait for the artifact"
                self._session.outcomes.note(item.calls.snapshot())

    def abandon(self, item: Awaited) -> None:
        """Stop awaiting a graph. Report nothing."""
        with self._changed:
            self._awaited.pop(item.id, None)
            item.done.set()
            self._changed.notify_all()
        self._session.outcomes.drop(item.key)

    def drop(self, item: Awaited) -> None:
        """Stop awaiting a graph, and do not submit it to a later daemon."""
        self.abandon(item)
        # after ``abandon``, no other thread changes the item's id
        self._session.connection.forget(item.id)

    def close(self, timeout_s: float) -> None:
        """End the thread. Wait for a running load, because no load may run while the interpreter shuts down."""
        with self._changed:
            self._closing = True
            thread = self._thread
            left = len(_without_code(self._awaited.values()))
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
        self._progress.ended(left, lambda: daemon_reachable(self._session.settings))

    def after_fork(self) -> None:
        """In a fork's child, await each graph from its first call on, with the child's own thread and connection.

        Most children (data loaders) never call a graph, and must neither load artifacts nor start a thread.
        """
        # The child awaits no pieces, because the artifact of the whole graph suffices.
        awaited = [item for item in (*self._awaited.values(), *self._dormant) if item.piece is None]
        self._progress = Progress(TerminalLines("off"), waits=False)  # the parent prints the lines
        self._reset()
        self._dormant = awaited
        for item in awaited:
            item.done, item.compiling = threading.Event(), threading.RLock()
            item.dispatch.before_next_call(functools.partial(self._take_up, item))

    def _take_up(self, item: Awaited) -> None:
        with self._changed:
            if item not in self._dormant:
                return
            self._dormant.remove(item)
        if item.program.device != "cpu":
            # The load would fail: a child cannot use CUDA if its parent has used CUDA.
            item.done.set()
            return
        # Use a new id: the daemon answers one client per id, and the parent waits for the answer to the old id.
        item.id, item.after = uuid.uuid4().hex, None
        try:
            self.add(item)
            item.submit(item)
        except Exception as error:  # noqa: BLE001 - the user's call must not raise, so it runs eager
            interruptions.pass_on(error)
            self._give_up(item, "submit-failed", f"a forked child process cannot submit the graph: {error}")

    def on_reply(self, reply: wire.DaemonMessage) -> None:
        """Handle the daemon's reply to a submit, in the connection's thread."""
        from precompiled import wire

        if isinstance(reply, wire.Rejected):
            with self._changed:
                self._refused.append((reply.id, reply.code, f"{reply.message}. {reply.action}".strip()))
                self._hint = True
                self._changed.notify_all()
        elif isinstance(reply, wire.Accepted):
            with self._changed:
                item = self._awaited.get(reply.id)
                if item is not None and reply.state == "published":
                    item.answered = self._hint = True
                    self._changed.notify_all()

    # ------------------------------------------------------------------ the thread

    def _start(self) -> None:
        if self._thread is None and not self._closing:
            thread = threading.Thread(target=self._work, name="precompiled-swap", daemon=True)
            thread.start()
            self._thread = thread

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    if not self._awaited or self._closing:
                        self._thread = None
                        return
                    refused, self._refused = self._refused, []
                    awaited = list(self._awaited.values())
                    self._hint = False
                openmp_threads.beside_compile(max(item.threads for item in awaited))
                for item in awaited:
                    self._guarded(item)
                # Check the store before handling refusals. If the store has a failure record, it says more than the
                # refusal.
                for id, code, text in refused:
                    self._give_up_if_awaited(id, code, text)
                self._session.connection.ensure_running()
                if self._session.connection.alone_s() > ALONE_S:
                    for item in awaited:
                        said = f"no daemon has answered for {ALONE_S:g} s, and no other process has compiled the graph"
                        self._give_up_if_awaited(item.id, "no-daemon", said)
                with self._changed:
                    awaited = list(self._awaited.values())
                self._progress.look(_without_code(awaited), blocked=self._blocked > 0)
                alone = self._session.connection.alone_s() > 0
                with self._changed:
                    if self._awaited and not self._closing and not self._hint:
                        self._changed.wait(LOOK_ALONE_S if alone else LOOK_S)
        except Exception as error:
            log.exception("the swap thread failed; pending graphs are compiled in process")
            with self._changed:
                self._thread = None
                left = list(self._awaited.values())
            for item in left:
                try:
                    self._give_up(item, "swap-thread", f"the thread that awaits artifacts failed: {error}")
                except Exception:  # threads that wait for this graph must not hang
                    log.exception("graph %s stays eager", item.calls.report.name)
                    self.abandon(item)
        finally:
            with self._changed:
                # Restore the number of OpenMP threads, unless a new swap thread has taken over and sets the number.
                if self._thread in (None, threading.current_thread()):
                    openmp_threads.beside_compile(0)

    def _guarded(self, item: Awaited) -> None:
        """Look for one graph's artifact. An error (an unreadable directory, a bug) fails only this graph."""
        try:
            self._look(item)
        except Exception as error:
            log.exception("graph %s is compiled in process", item.calls.report.name)
            self._give_up_if_awaited(item.id, code_of(error, "internal-error"), str(error) or type(error).__name__)

    def _look(self, item: Awaited) -> None:
        store = self._session.store
        if item.after is not None and item.after.is_set():
            in_pieces = item.dispatch.is_served() and not item.dispatch.has_lost_pieces
            item.after, item.background, item.submitted = None, in_pieces, time.time()
            item.submit(item)
        try:
            # The thread reads the store only if the daemon has reported the graph, or if one of its first two slots
            # exists. This check costs two calls of stat.
            with self._changed:
                answered, item.answered = item.answered, False
            if answered or any((store.artifacts / f"{item.key}.{slot}").exists() for slot in (0, 1)):
                sizes = item.program.sizes(item.hints)
                artifacts = store.lookup(item.key)
                for artifact in artifacts:
                    if guard_check(artifact.manifest.guards)(sizes):
                        if item.program.weights is None or item.program.weights.unchanged():
                            self._act(item, artifact)
                        else:
                            said = "a frozen weight changed before the artifact was ready"
                            self._give_up_if_awaited(item.id, "weights-changed", said)
                        return
                if answered and artifacts:
                    # The published variant serves other sizes, so the daemon must still compile this graph's variant.
                    self._resubmit(item)
                    return
                if answered:
                    item.swap.on(Event.PUBLISHED)
                    self._load_failed(item, "artifact-evicted", "the artifact was removed before the load")
                    return
            if (store.artifacts / f"{item.key}{FAILED_SUFFIX}").exists():
                failure = store.failure(item.key)
                # Ignore a record from before the submit, because it may be about other sizes. The daemon's answer then
                # decides. The tolerance of one second is for the coarse clocks of file systems.
                if failure is not None and failure.created >= item.submitted - 1.0:
                    self._give_up_if_awaited(item.id, failure.reason, failure.message)
            if item.to_record is not None and not item.done.is_set():
                # `precompiled explain` compares the graph with earlier graphs before the store has its artifact.
                self._session.outcomes.keep(item.key, item.to_record)
                item.to_record = None
        except StoreError as error:
            self._session.ledger.count_reason("fallbacks", error.code)
            self._give_up_if_awaited(item.id, error.code, str(error))

    def _resubmit(self, item: Awaited) -> None:
        """Submit a new job under a new id. Under the old id, the daemon would treat the submit as the old job."""
        with self._changed:
            if item.done.is_set():
                return  # the swap thread has just finished the item, and would never remove it
            old, item.after = item.id, None
            self._awaited.pop(old, None)
            item.id, item.submitted = uuid.uuid4().hex, time.time()
            self._awaited[item.id] = item
        self._session.connection.forget(old)
        item.submit(item)
        if item.done.is_set():  # another thread finished the item before this submit
            self._session.connection.forget(item.id)

    def _act(self, item: Awaited, artifact: Artifact) -> None:
        if item.swap.on(Event.PUBLISHED) is not Instruction.LOAD:
            return
        # If a fork came between load and finish, the child would await a loaded graph forever.
        with forking.held():
            problem = swap_in(self._session, item, artifact)
            if problem is None:
                self._finish(item)
        if isinstance(problem, Bypass):
            self._give_up(item, problem.code, str(problem))
            return
        if problem is not None:
            self._load_failed(item, code_of(problem, "artifact-evicted"), str(problem))
            return
        log.info("graph %s swapped after %.2f s", item.calls.report.name, item.calls.report.swapped_after_s)
        self._session.tell_counts()
        if not self._awaited:
            self._session.tell_used()

    def _load_failed(self, item: Awaited, code: str, message: str) -> None:
        """Submit the graph again, at most MAX_LOADS times (swap.py)."""
        log.warning("graph %s: %s", item.calls.report.name, message)
        if item.swap.on(Event.LOAD_FAILED) is Instruction.SUBMIT:
            self._session.ledger.count_reason("fallbacks", code)
            self._resubmit(item)
        else:
            self._give_up(item, code, message)

    def _give_up_if_awaited(self, id: str, code: str, message: str) -> None:
        with self._changed:
            item = self._awaited.get(id)
        if item is not None:
            self._give_up(item, code, message)

    def _give_up(self, item: Awaited, code: str, message: str) -> None:
        """Record that no artifact will come, and stop awaiting the graph."""
        fall_back(self._session, item, code, message)
        self._finish(item)

    def _finish(self, item: Awaited) -> None:
        if item.piece is None:
            self._session.outcomes.note(item.calls.snapshot())
        self.drop(item)


def _without_code(awaited: Iterable[Awaited]) -> list[Awaited]:
    """The graphs that do not run compiled yet, neither as a whole nor in pieces."""
    return [item for item in awaited if item.piece is None and not item.background]
