"""Awaits the artifacts of pending graphs in one background thread, which lives only while graphs are pending.

The daemon reports each published graph (``on_reply``), which wakes this thread. Other hosts, and processes that compile
in process, publish without such a message, so the thread also checks each awaited name with stat. The thread loads the
artifact and replaces one reference, so the next call runs compiled.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from precompiled.client.dispatch import Dispatch
from precompiled.client.ledger import GraphCalls
from precompiled.client.link import daemon_reachable
from precompiled.client.load import load
from precompiled.client.progress import Progress
from precompiled.client.swap import Event, Instruction, State, Swap
from precompiled.core import forking
from precompiled.core.errors import COMPILE_ERROR, Bypass, StoreError, code_of
from precompiled.core.reasons import Outcome, outcome
from precompiled.graph.capture import SerializedGraph
from precompiled.store.artifact_format import FAILED_SUFFIX
from precompiled.store.artifacts import Artifact
from precompiled.torch_internals.client import cuda_graph_capture, openmp_threads
from precompiled.torch_internals.graph.symbolic_sizes import guard_check

if TYPE_CHECKING:
    from precompiled import wire
    from precompiled.client.connection import DaemonConnection
    from precompiled.client.ledger import GraphReport, Ledger
    from precompiled.core.config import Settings
    from precompiled.store.artifacts import Store

log = logging.getLogger("precompiled.client.pending")

# Seconds between two looks at the store, unless the daemon reports a published graph earlier.
LOOK_S = 2.0
LOOK_ALONE_S = 0.5  # while no daemon answers
# After this many seconds without a daemon (it was stopped, or cannot be started) a graph is compiled in process.
# Otherwise it would stay eager until the program ends. A daemon's restart takes less, also on a host with many
# clients.
ALONE_S = 60.0


class SessionView(Protocol):
    """The part of session.Session that this file uses."""

    settings: Settings
    store: Store
    connection: DaemonConnection
    ledger: Ledger
    stays_eager: bool

    def warn_once(self, code: str, text: str) -> None: ...
    def compiled_here(self, calls: GraphCalls) -> None: ...
    def loaded_from(self, artifact: Artifact) -> None: ...
    def tell_counts(self) -> None: ...
    def note(self, report: GraphReport) -> None: ...
    def tell_used(self) -> None: ...
    def refuse(self, calls: GraphCalls, code: str, message: str) -> None: ...
    def not_served(self, calls: GraphCalls, code: str, message: str) -> None: ...
    @property
    def requires(self) -> bool: ...


class NotNow(Exception):
    """A graph cannot be compiled at this call. The call runs eager, and the next call tries again."""


@dataclass(eq=False)
class Awaited:
    """A graph that runs eager until its artifact arrives."""

    calls: GraphCalls
    program: SerializedGraph
    hints: list[int]  # the sizes that the awaited variant must serve
    swap: Swap  # the graph's own, or a separate one for a further variant
    submit: Callable[[Awaited], None]
    dispatch: Dispatch
    # Returns the callable and the guards on its sizes.
    compile_inline: Callable[[], tuple[Callable[..., Any], str] | None]
    id: str
    since: float = field(default_factory=time.monotonic)
    submitted: float = field(default_factory=time.time)  # seconds since the epoch, as in failure records
    done: threading.Event = field(default_factory=threading.Event)
    answered: bool = False  # the daemon said that the key is published
    compiled_here: bool = False  # the graph was compiled in process instead
    compiling: threading.RLock = field(default_factory=threading.RLock)  # held during the compile in process
    waited_for: bool = False  # a call of the program waits for the artifact
    threads: int = 0  # OpenMP threads that its eager calls use on the CPU
    waited_s: float = 0.0  # the sum of the program's finished waits
    waits_since: float | None = None  # time.monotonic() at the start of the wait under way

    def waited(self) -> float:
        """The seconds for which the program has been blocked by this graph."""
        since = self.waits_since
        return self.waited_s + (time.monotonic() - since if since is not None else 0.0)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in the block as waiting time of the program. If several threads wait, only one counts."""
        if self.waits_since is not None:
            yield
            return
        self.waits_since = time.monotonic()
        try:
            yield
        finally:
            self.waited_s, self.waits_since = self.waited(), None

    @property
    def key(self) -> str:
        return self.calls.report.key


class Pending:
    """The awaited graphs of a process. Thread-safe."""

    def __init__(self, session: SessionView) -> None:
        self._session = session
        settings = session.settings
        self._progress = Progress(wanted=settings.progress, waits=settings.mode == "wait" or settings.require)
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._awaited: dict[str, Awaited] = {}
        self._refused: list[tuple[str, str, str]] = []
        self._thread: threading.Thread | None = None
        self._hint = False
        self._closing = False
        self._dormant: list[Awaited] = []  # the fork's parent awaits these; this process does not yet

    def add(self, awaited: Awaited) -> None:
        """Await this graph's artifact from now on. Raises RuntimeError if no thread can be started."""
        with self._changed:
            self._start()
            self._awaited[awaited.id] = awaited
            self._hint = True
            self._changed.notify_all()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until no graph is awaited. Returns false after ``timeout_s`` seconds."""
        for item in list(self._dormant):
            self._take_up(item)
        with contextlib.ExitStack() as stack, self._changed:
            for item in self._awaited.values():
                stack.enter_context(item.waiting())
            return self._changed.wait_for(lambda: not self._awaited, timeout_s)

    def await_artifact(self, item: Awaited) -> None:
        """Wait until the artifact is loaded, for a call that must not run eager. If none comes, compile it now.

        Raises NotServed if ``require`` is set and no artifact came.
        """
        if not item.done.is_set():
            item.waited_for = True
            with contextlib.suppress(Exception):  # without a new submit the job goes on, only without priority
                self._resubmit(item)
        self.stand_still(item)
        if item.swap.state is State.COMPILED:
            return
        said = f"no artifact was there within {self._session.settings.wait_s:g} s"
        self._session.refuse(item.calls, "not-in-time", said)
        if outcome(item.calls.report.reason, runs=False) is not Outcome.EAGER:
            _compile_now(self._session, item)

    def stand_still(self, item: Awaited) -> None:
        """Block the program's thread until the artifact is loaded or has failed, for ``wait_s`` at most."""
        report = item.calls.report
        if not item.done.is_set():
            # The run record of a process that ends during this wait must list the graph.
            self._session.note(item.calls.snapshot())
        started = time.perf_counter()
        is_over = False
        try:
            with item.waiting():
                item.done.wait(self._session.settings.wait_s)
            is_over = True
        finally:
            item.calls.spent("wait", time.perf_counter() - started)
            if not is_over and not item.done.is_set():  # Ctrl-C
                report.message = "interrupted while it waited for its compile"
                self._session.note(item.calls.snapshot())

    def abandon(self, item: Awaited) -> None:
        """Stop awaiting a graph, without a message to the daemon or the program."""
        with self._changed:
            self._awaited.pop(item.id, None)
            item.done.set()
            self._changed.notify_all()

    def drop(self, item: Awaited) -> None:
        """Stop awaiting a graph, and do not submit it to a later daemon."""
        self.abandon(item)
        self._session.connection.forget(item.id)  # after abandon: the id of an item that is done cannot change any more

    def close(self, timeout_s: float) -> None:
        """End the thread, after a load under way: a load must not run while the interpreter shuts down."""
        with self._changed:
            self._closing = True
            thread = self._thread
            left = len(self._awaited)
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)
        self._progress.ended(left, lambda: daemon_reachable(self._session.settings))

    def after_fork(self) -> None:
        """In the child: await a graph from its first call on, with a thread and connection of the child's own.

        Most children (data loaders) never call a graph: these must neither load artifacts nor start a thread.
        """
        awaited = [*self._awaited.values(), *self._dormant]
        self._progress = Progress(wanted=False, waits=False)  # the parent shows the progress
        self._reset()
        self._dormant = awaited
        for item in awaited:
            item.done, item.waits_since, item.compiling = threading.Event(), None, threading.RLock()
            item.dispatch.before_next_call(functools.partial(self._take_up, item))

    def _take_up(self, item: Awaited) -> None:
        with self._changed:
            if item not in self._dormant:
                return
            self._dormant.remove(item)
        if item.program.device != "cpu":
            # CUDA cannot be used in the child of a process that has used it: the load would fail.
            item.done.set()
            return
        # A new id: the daemon answers one client per id, and the parent waits for the answer to its own.
        item.id = uuid.uuid4().hex
        try:
            self.add(item)
            item.submit(item)
        except Exception as error:  # noqa: BLE001 - this is the user's call, which runs eager instead
            self._give_up(item, "submit-failed", f"a child of a fork cannot submit it: {error}")

    def on_reply(self, reply: wire.DaemonMessage) -> None:
        """Take the daemon's reply to a submit. Called in the connection's thread."""
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
                # After the look at the store: a failure record says why a worker failed, and is preferred to the
                # refusal.
                for id, code, text in refused:
                    self._give_up_if_awaited(id, code, text)
                self._session.connection.ensure_running()
                if self._session.connection.alone_s() > ALONE_S:
                    for item in awaited:
                        said = f"no daemon has answered for {ALONE_S:g} s, and no other process has compiled it"
                        self._give_up_if_awaited(item.id, "no-daemon", said)
                with self._changed:
                    awaited = list(self._awaited.values())
                self._progress.look(awaited)
                alone = self._session.connection.alone_s() > 0
                with self._changed:
                    if self._awaited and not self._closing and not self._hint:
                        self._changed.wait(LOOK_ALONE_S if alone else LOOK_S)
        except Exception as error:
            log.exception("the swap thread broke down; pending graphs are compiled in process")
            with self._changed:
                self._thread = None
                left = list(self._awaited.values())
            for item in left:
                try:
                    self._give_up(item, "swap-thread", f"the thread that awaits artifacts broke down: {error}")
                except Exception:  # the threads that wait for this graph must not hang
                    log.exception("graph %s stays eager", item.calls.report.name)
                    self.abandon(item)
        finally:
            with self._changed:
                # Otherwise the next thread has already set its own number.
                if self._thread in (None, threading.current_thread()):
                    openmp_threads.beside_compile(0)

    def _guarded(self, item: Awaited) -> None:
        """Look for one graph's artifact. An error (an unreadable directory, a bug) fails this graph alone."""
        try:
            self._look(item)
        except Exception as error:
            log.exception("graph %s is compiled in process", item.calls.report.name)
            self._give_up_if_awaited(item.id, code_of(error, "internal-error"), str(error) or type(error).__name__)

    def _look(self, item: Awaited) -> None:
        store = self._session.store
        try:
            # Two calls of stat. The store is read only if a name exists or was reported as published.
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
                            said = "a frozen weight was changed before what was compiled of it could be used"
                            self._give_up_if_awaited(item.id, "weights-changed", said)
                        return
                if answered and artifacts:
                    # The variant published under this key is for other sizes, so this graph's is still to be
                    # compiled.
                    self._resubmit(item)
                    return
                if answered:
                    item.swap.on(Event.PUBLISHED)
                    self._load_failed(item, "artifact-evicted", "the artifact was removed before it could be loaded")
                    return
            if (store.artifacts / f"{item.key}{FAILED_SUFFIX}").exists():
                failure = store.failure(item.key)
                # An older record may be about other sizes, and the worker is about to replace it. The tolerance of
                # one second is for the coarse clocks of file systems. A record that is too old is checked again when
                # the daemon answers.
                if failure is not None and failure.created >= item.submitted - 1.0:
                    self._give_up_if_awaited(item.id, failure.reason, failure.message)
        except StoreError as error:
            self._session.ledger.count_reason("fallbacks", error.code)
            self._give_up_if_awaited(item.id, error.code, str(error))

    def _resubmit(self, item: Awaited) -> None:
        """Submit again as a new job, under a new id: the daemon treats a repeated id as the old job."""
        with self._changed:
            if item.done.is_set():
                return  # the swap thread has just finished it: an item added now would never be removed
            old = item.id
            self._awaited.pop(old, None)
            item.id, item.submitted = uuid.uuid4().hex, time.time()
            self._awaited[item.id] = item
        self._session.connection.forget(old)
        item.submit(item)
        if item.done.is_set():  # it finished meanwhile, and could not forget an id that was not yet submitted
            self._session.connection.forget(item.id)

    def _act(self, item: Awaited, artifact: Artifact) -> None:
        if item.swap.on(Event.PUBLISHED) is not Instruction.LOAD:
            return
        # A fork between load and finish would leave the child with a loaded graph that it awaits for ever.
        with forking.held():
            problem = self._load(item, artifact)
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

    def _load(self, item: Awaited, artifact: Artifact) -> Exception | None:
        """Load the artifact and make it serve the graph. Returns the error if it cannot be used."""
        session, report = self._session, item.calls.report
        started = time.perf_counter()
        try:
            program = item.program
            with cuda_graph_capture.unconcerned():
                function = load(
                    session.store,
                    artifact,
                    program.modes,
                    cudagraphs=program.cudagraphs,
                    classes=program.classes,
                    frozen=program.frozen,
                    device=program.device,
                    groups=program.groups,
                    context=program.context,
                )
        except (Bypass, StoreError, FileNotFoundError) as error:
            return error
        load_s = time.perf_counter() - started
        report.swapped_after_s = time.monotonic() - item.since
        guards = artifact.manifest.guards
        item.dispatch.serve_with(function, guard_check(guards) if guards else None)
        saved_s = item.calls.loaded("swap", load_s, artifact.manifest.compile_s, item.swap, item.waited())
        session.ledger.count(swapped=1, saved_s=saved_s)
        session.loaded_from(artifact)
        return None

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
        """Record that no artifact will come: the graph stays eager in this process, or its next call compiles it as
        plain torch.compile would have. core/reasons.py says which, by ``code``.
        """
        report, warn = item.calls.report, self._session.warn_once
        report.reason, report.message = code, message
        if self._session.requires:
            self._session.not_served(item.calls, code, message)  # the call that waits for it raises
        elif (
            outcome(code, runs=not item.program.no_stand_in) is Outcome.EAGER
            # `--target`: compiled code cannot run on this host
            or (self._session.stays_eager and not item.program.no_stand_in)
        ):
            item.swap.on(Event.FAILED)
            self._session.ledger.count_reason("fallbacks", code)
            first = message.splitlines()[0] if message else ""
            warn(code, f"a graph stays eager ({code}): {report.name}: {first}")
        elif item.swap.on(Event.REFUSED) is Instruction.COMPILE_INLINE_LATER:
            self._session.ledger.count_reason("fallbacks", code)
            if code != COMPILE_ERROR:  # the compile in process shows this error itself
                warn(code, f"a graph is compiled in process ({code}): {report.name}: {message}")
            _compile_later(self._session, item)
        self._finish(item)

    def _finish(self, item: Awaited) -> None:
        self._session.note(item.calls.snapshot())
        self.drop(item)


def _compile_later(session: SessionView, item: Awaited) -> None:
    action = functools.partial(_compile_now, session, item)
    if item.swap is item.calls.swap:
        item.dispatch.before_next_call(action, in_captures=False)
    else:  # compile only when a call with these sizes comes again
        item.dispatch.before_call_with(item.program.sizes(item.hints), action)


def _compile_now(session: SessionView, item: Awaited) -> None:
    """Compile in process, in the caller's thread, just before a call. Raises what plain torch.compile would raise."""
    # One of several threads compiles. The others run eager meanwhile; a thread whose call must not run eager waits
    # for the lock.
    with item.compiling:
        if not item.compiled_here:
            _compile(session, item)


def _compile(session: SessionView, item: Awaited) -> None:
    item.compiled_here = True
    started = time.perf_counter()
    try:
        compiled = item.compile_inline()
    except NotNow:
        item.compiled_here = False
        _compile_later(session, item)
        return
    except BaseException:
        # The next call compiles again, as with plain torch.compile. A stored error would keep the frames of its
        # traceback alive, and with them the program's tensors.
        item.compiled_here = False
        _compile_later(session, item)
        raise
    item.calls.spent("compile in process", time.perf_counter() - started)
    if compiled is not None:
        function, guards = compiled
        item.dispatch.serve_with(function, guard_check(guards) if guards else None)
        if item.swap is item.calls.swap:  # a further variant does not decide where the graph's code comes from
            session.compiled_here(item.calls)
