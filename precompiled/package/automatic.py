"""Packages without being asked: what Dynamo traces is published, and found again before the next process traces it.

``find`` is asked at each frame that Dynamo has no code for, ``traced`` is told what came of those that it had to trace.
Whatever is in doubt ends in tracing as usual, with a reason: ``reports()`` has them all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from precompiled import session as sessions
from precompiled.artifact import load as loading
from precompiled.artifact.store import Entry as ArtifactEntry
from precompiled.dispatch import Dispatch, counting
from precompiled.errors import PrecompiledError, StoreError
from precompiled.graph import capture, codec, environment
from precompiled.ledger import GraphCalls, GraphReport
from precompiled.package import difference
from precompiled.package import format as fmt
from precompiled.package.identity import Descriptions, NotPortable, code_digest
from precompiled.package.store import Entry, PackageStore
from precompiled.submit import Submitter
from precompiled.swap import Event
from precompiled.torch_internals import configs, package_code, package_guards, stand_in, user_modules
from precompiled.torch_internals import package_frames as frames
from precompiled.torch_internals.package_frames import Frame, Graph, Mismatch, Traced
from precompiled.torch_internals.sizes import guard_check

log = logging.getLogger("precompiled.package")

# Entries that are compared with a frame in full: a function that is called with ever new values must not make each of
# its traces slower by all that were before. Dynamo itself gives up after 8 (recompile_limit).
MAX_TRIED = 16


@dataclass
class FunctionReport:
    """What became of one frame that Dynamo had no code for.

    ``state``: "used" (from a package), "skipped" (a package says that it stays as it is), "recorded" (traced,
    and kept), "traced" (and not kept: ``reason``). ``reasons``: why each entry that was there was not used.
    """

    name: str  # module.qualified name
    state: str
    reason: str = ""
    message: str = ""
    reasons: tuple[str, ...] = ()
    guards: int = 0
    find_s: float = 0.0


def name_graph(function: Callable[..., Any], report: GraphReport, program: capture.Program) -> None:
    """Say on what Dynamo gets for a graph which artifact it runs with; called by backend.py."""
    if program.cudagraphs or program.modes.get("groups"):
        return  # cudagraphs need what a trace marks on parameters; collectives need ranks that agree
    graph = Graph(
        report.key, report.name, program.modes, program.cudagraphs, program.size_inputs, program.modules, program.device
    )
    setattr(function, frames.MARK, graph)


_packages: Automatic | None = None


def switch_on() -> Automatic:
    global _packages  # noqa: PLW0603
    if _packages is None:
        _packages = Automatic()
    frames.install(_packages)
    return _packages


def switch_off() -> None:
    frames.remove()


def reports() -> list[FunctionReport]:
    """Every frame that Dynamo met in this process while packages were on."""
    return list(_packages.reports) if _packages is not None else []


def flush(timeout: float | None = None) -> bool:
    """Until what was recorded is published; false when the time was not enough."""
    return _packages is None or _packages.publisher.flush(timeout)


class Automatic:
    """The packages of this process (torch_internals/package_frames.Packages)."""

    def __init__(self) -> None:
        self.reports: list[FunctionReport] = []
        self.publisher = Publisher()
        self._counter = 0
        self._reasons: tuple[str, ...] = ()  # why no entry was used for the frame that is traced now
        self._read: dict[str, Entry] = {}  # by name: what was read and verified once
        # Given by load_package(check_source=False): by module, qualified name and fullgraph=, whatever the code is.
        self.unchecked: dict[tuple[str, str, bool], list[Entry]] = {}

    # ------------------------------------------------------------------ using

    def find(self, frame: Frame) -> Any:
        """What Dynamo would get from a trace, or None: then it traces. Raises in strict mode only."""
        started = time.perf_counter()
        reasons: list[str] = []
        session: sessions.Session | None = None
        self._reasons = ()
        try:
            session = sessions.current()
            if session.settings.mode == "off" or os.environ.get("PRECOMPILED") == "0":
                return None
            if session.recorder is not None:
                return None  # a watch's capture is there to trace
            found = self._find(session, frame, reasons)
        except Exception as error:
            if session is not None and session.settings.strict:
                raise
            code = error.code if isinstance(error, PrecompiledError) else "package-internal-error"
            if session is not None:
                session.ledger.count_reason("not_kept", code)
            log.info("no package for %s.%s (%s)", frame.module, frame.qualname, code, exc_info=True)
            reasons.append(f"{code}: {error}")
            found = None
        if found is None or session is None:
            self._reasons = tuple(reasons)
            return None
        result, report = found
        report.find_s = time.perf_counter() - started
        report.reasons = tuple(reasons)
        self.reports.append(report)
        session.ledger.count(untraced=1)
        return result

    def _find(self, session: sessions.Session, frame: Frame, reasons: list[str]) -> tuple[Any, FunctionReport] | None:
        store = PackageStore(session.store.root)
        here: dict[str, str] | None = None
        described = Descriptions()
        tried = 0
        for entry, check_source in self._entries(store, frame, reasons):
            try:
                here = here or requirements(frame.options)
                _check_requirements(entry.header.requires, here)
                if (differs := frames.passed_over(entry.header.locals, frame)) is not None:
                    raise Mismatch(differs)
                tried += 1
                if tried > MAX_TRIED:
                    reasons.append(f"none of the {MAX_TRIED} newest entries is for this call")
                    return None
                result = self._use(session, entry, frame, described, check_source=check_source)
            except (Mismatch, StoreError) as reason:
                place = _place(entry, reason.guard) if isinstance(reason, Mismatch) else ""
                reasons.append(f"{reason}{difference.at(place)}")
                log.info("%s.%s: %s", frame.module, frame.qualname, reason)
                continue
            store.touch(entry)
            frames.entries_of(frame.owner).append((entry.header.function, entry.name))
            state = "skipped" if entry.header.kind == "skipped" else "used"
            return result, FunctionReport(f"{frame.module}.{frame.qualname}", state, guards=entry.header.guards)
        return None

    def _entries(self, store: PackageStore, frame: Frame, reasons: list[str]) -> Iterator[tuple[Entry, bool]]:
        """Those of a frame's function, newest first, and whether their sources count.

        What says that the frame stays as it is comes last: with other values it may have been compiled.
        """
        function = _function_key(frame)
        skipped = []
        for name in store.names(function):
            try:
                entry = self._read.get(name)
                if entry is None:
                    entry = self._read[name] = store.read(function, name)
            except FileNotFoundError:
                continue  # evicted meanwhile
            except StoreError as reason:
                reasons.append(str(reason))
                continue
            if entry.header.kind == "skipped":
                skipped.append(entry)
            else:
                yield entry, True
        for entry in self.unchecked.get((frame.module, frame.qualname, frame.one_graph), []):
            yield entry, False
        for entry in skipped:
            yield entry, True

    def _use(
        self, session: sessions.Session, entry: Entry, frame: Frame, described: Descriptions, *, check_source: bool
    ) -> Any:
        self._counter += 1
        number = self._counter

        def name(placeholder: str) -> str:
            return f"__precompiled_{number}_{placeholder}"

        if entry.header.kind == "skipped":
            return frames.skipped(frame, package_code.decode(entry.body, name), name)
        # First of all, since it is a look: guards that are made for an artifact that is not there are made for nothing.
        artifacts = {key: session.store.lookup(key) for key in entry.header.artifacts}
        missing = next((key for key, found in artifacts.items() if not found), None)
        if missing is not None:
            raise Mismatch(f"the artifact {missing[:12]} is not in the store")
        body = package_code.decode(entry.body, name)
        rebuilder = frames.usable(body, frame, described, name, check_source=check_source)
        install = frames.rebuilt(frame, rebuilder)
        loaded = [_load(session, graph, artifacts[graph.key]) for graph in body.graphs]
        result = install([function for function, _calls in loaded], body, name)
        for _function, calls in loaded:  # not before: now it is used
            session.ledger.add(calls)
            session.ledger.count(hits=1, saved_s=calls.mutable.saved_s)
        return result

    # ------------------------------------------------------------------ recording

    def traced(self, frame: Frame, traced: Traced) -> None:
        """Keep what came of a trace. Never raises."""
        report = FunctionReport(f"{frame.module}.{frame.qualname}", "recorded", reasons=self._reasons)
        self.reports.append(report)
        try:
            sessions.current().ledger.count(traced=1)
            if traced.problem is not None:
                raise traced.problem
            session = sessions.current()
            if not session.settings.packages:
                raise NotPortable("packages are not recorded (PRECOMPILED_PACKAGES=1 does)", code="package-off")
            store = PackageStore(session.store.root)
            function, requires = _function_key(frame), requirements(frame.options)
            if traced.skip is not None:
                report.message = traced.skip
                if frames.passing():
                    raise NotPortable("errors are suppressed or Dynamo is debugged: it may be left alone for this once",
                                      code="package-passing")  # fmt: skip
                body = package_code.encode(frames.left(frame, traced), traced.names)
                about = fmt.About(reason=traced.skip)
                header = fmt.Header(
                    function,
                    frame.module,
                    frame.qualname,
                    code_digest(frame.code),
                    frame.one_graph,
                    "skipped",
                    requires,
                )
                self._publish(store, header, about, body, frame, report)
                return
            made = traced.body
            assert made is not None
            report.guards = len(made.guards.guards)
            header = fmt.Header(
                function, frame.module, frame.qualname, code_digest(frame.code), frame.one_graph, "compiled", requires,
                [graph.key for graph in made.graphs], traced.locals, report.guards,
                frames.meaning(made, traced.about),
            )  # fmt: skip
            # Bytes now: the sources hold nothing of the user's, but who knows what the user's thread does next.
            body = package_code.encode(made, traced.names)
            self._publish(store, header, traced.about, body, frame, report)
        except Exception as error:  # noqa: BLE001 - the trace went well; keeping it is our own affair
            report.state = "traced"
            report.reason = error.code if isinstance(error, PrecompiledError) else "package-internal-error"
            report.message = str(error)
            with suppress(Exception):  # settings that cannot be read: torch.compile goes on without us
                sessions.current().ledger.count_reason("not_kept", report.reason)
            log.info("%s is not kept (%s): %s", report.name, report.reason, error)

    def _publish(
        self, store: PackageStore, header: fmt.Header, about: fmt.About, body: bytes, frame: Frame,
        report: FunctionReport,
    ) -> None:  # fmt: skip
        entries = frames.entries_of(frame.owner)

        def write() -> None:
            entries.append((header.function, store.publish(header, about.to_bytes(), body)))

        self.publisher.publish(write, report)


def _place(entry: Entry, guard: int | None) -> str:
    """The user's line that a guard came from, where that is known."""
    try:
        return "" if guard is None else fmt.About.parse(entry.about).guards[guard].place
    except (StoreError, IndexError):
        return ""


def _load(
    session: sessions.Session, graph: Graph, entries: list[ArtifactEntry]
) -> tuple[Callable[..., Any], GraphCalls]:
    """The callable of a graph, from its artifacts. Raises Mismatch where it is not for here, and StoreError."""
    state = frames.modes_of_a_compile(graph.device == "cpu")
    changed = [name for name in state if state[name] != graph.modes.get(name)]
    if changed:
        name = changed[0]
        raise Mismatch(f"{name} is {state[name]!r} here, {graph.modes.get(name)!r} when it was traced")
    for module, digest in graph.modules.items():
        user_modules.import_modules(module, digest)
    started = time.perf_counter()
    calls = GraphCalls(GraphReport(id=uuid.uuid4().hex, name=graph.name, key=graph.key))
    whole = next((entry for entry in entries if not entry.manifest.guards), None)
    if whole is not None:
        function = counting(calls, loading.load(session.store, whole, graph.modes, cudagraphs=graph.cudagraphs))
    else:
        function = _dispatched(session, graph, entries, calls)
    calls.calls_before_flip = 0
    report = calls.mutable
    report.load_s = time.perf_counter() - started
    report.source, report.saved_s = "package", (whole or entries[0]).manifest.compile_s
    calls.swap.on(Event.HIT)
    return function, calls


def _dispatched(
    session: sessions.Session, graph: Graph, entries: list[ArtifactEntry], calls: GraphCalls
) -> Callable[..., Any]:
    """A graph whose artifacts are for some sizes: as after a swap, others run eager and are asked for.

    All that an eager run needs is made now: once Dynamo has the graph, a call must not fail because an artifact was
    evicted, or a source edited.
    """
    kept = _program_of(session, entries[0])
    program = capture.restored(kept, graph.modes, graph.device, graph.cudagraphs, graph.size_inputs, graph.modules)
    about = kept.get(capture.ABOUT)
    submitter = Submitter(session, calls, lambda: json.dumps(about) if about else "")
    if session.settings.mode != "lookup":
        session.begin_daemon()  # so that nobody waits for its start when a size is asked for

    def request(sizes: list[int]) -> None:
        if session.settings.mode != "lookup" and session.daemon_problem() is None:
            submitter.request_variant(program, dispatch, sizes)

    dispatch = Dispatch(calls, _stand_in(kept), graph.size_inputs, request)
    for entry in entries:
        function = loading.load(session.store, entry, graph.modes, cudagraphs=graph.cudagraphs)
        dispatch.serve_with(function, guard_check(entry.manifest.guards))
    return dispatch.call


def _program_of(session: sessions.Session, entry: ArtifactEntry) -> dict[str, Any]:
    """What an artifact was compiled from, parsed; raises StoreError where it does not say so."""
    data = session.store.read_program(entry)
    if data is None:
        raise StoreError(
            f"the artifact {entry.manifest.key[:12]} is for some sizes, and does not say what it was compiled from",
            "Save the package again",
            code="artifact-program",
        )
    return capture.parse(data)


def _stand_in(program: dict[str, Any]) -> Callable[..., Any]:
    """What runs a program eager."""
    run: Callable[..., Any] = stand_in.eager(codec.decode(program["graph"])).forward
    return run


def _function_key(frame: Frame) -> str:
    return fmt.function_key(frame.module, frame.qualname, code_digest(frame.code), one_graph=frame.one_graph)


def decoded(entry: Entry) -> frames.Body:
    """What an entry holds, under the names of no process. Its digest is verified; its pickle is code."""
    body: frames.Body = package_code.decode(entry.body, lambda placeholder: f"__precompiled_0_{placeholder}")
    return body


def requirements(options: dict[str, Any]) -> dict[str, str]:
    """What must be equal in both processes, beside the guards: short texts as they are, the rest as digests."""
    settings = configs.snapshot(options)
    facts = environment.facts(package_guards.first_device())
    # The artifacts are compiled already: which compiler is here, and what it would find, changes nothing of them.
    facts.pop("compiler", None)
    facts["variables"] = {
        name: value for name, value in facts["variables"].items() if name.startswith(("TORCHINDUCTOR_", "TRITON_"))
    }
    facts = {name: _shown(value) for name, value in facts.items()}
    return {
        **facts,
        **package_guards.process_state(),
        "inductor": _digest(settings),
        "dynamo": frames.trace_configuration(),
    }


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= 80 else hashlib.sha256(text.encode()).hexdigest()


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()


def _check_requirements(wanted: dict[str, str], here: dict[str, str]) -> None:
    for name in sorted({*wanted, *here}):
        if wanted.get(name) != here.get(name):
            raise Mismatch(f"{name}: {here.get(name)} here, {wanted.get(name)} when it was traced")


class Publisher:
    """Writes entries in a thread of its own, which lives while there are any; Python waits for it when it ends."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: list[tuple[Callable[[], Any], FunctionReport]] = []
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._after_fork)

    def publish(self, write: Callable[[], Any], report: FunctionReport) -> None:
        with self._lock:
            self._waiting.append((write, report))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="precompiled-packages", daemon=False)
                try:
                    thread.start()
                except RuntimeError as error:  # no more threads, or Python is about to end
                    self._waiting.clear()
                    raise StoreError(f"no thread can be had to write it: {error}", code="package-unwritable") from error
                self._thread = thread

    def flush(self, timeout: float | None) -> bool:
        with self._lock:
            return self._lock.wait_for(lambda: self._thread is None, timeout)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    self._lock.notify_all()
                    return
                write, report = self._waiting.pop(0)
            try:
                write()
            except Exception as error:  # noqa: BLE001 - a full disk: the next process traces
                report.state, report.message = "traced", str(error)
                report.reason = error.code if isinstance(error, PrecompiledError) else "package-internal-error"
                log.warning("%s is not kept: %s", report.name, error)

    def _after_fork(self) -> None:
        self._lock = threading.Condition()
        self._waiting, self._thread = [], None  # the parent's, which writes them


__all__ = ["FunctionReport", "NotPortable", "asdict", "flush", "name_graph", "reports", "switch_off", "switch_on"]
