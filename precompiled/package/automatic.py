"""Packages without being asked: what Dynamo traces is published, and found again before the next process traces it.

``find`` is asked at each frame that Dynamo has no code for, ``traced`` is told what came of those that it had to trace.
Whatever is in doubt ends in tracing as usual, with a reason: ``reports()`` has them all.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from precompiled import session as sessions
from precompiled.artifact import load as loading
from precompiled.dispatch import Dispatch, counting
from precompiled.errors import PrecompiledError, StoreError
from precompiled.graph import capture, environment
from precompiled.ledger import GraphCalls, GraphReport
from precompiled.package import format as fmt
from precompiled.package.identity import Descriptions, NotPortable, code_digest, locals_digest
from precompiled.package.store import Entry, PackageStore
from precompiled.swap import Event
from precompiled.torch_internals import configs, modes, package_code, package_guards, user_modules
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
        self._read: dict[str, Entry] = {}  # by name: what was read and verified once
        # Given by load_package(check_source=False): by module, qualified name and fullgraph=, whatever the code is.
        self.unchecked: dict[tuple[str, str, bool], list[Entry]] = {}

    # ------------------------------------------------------------------ using

    def find(self, frame: Frame) -> Any:
        """What Dynamo would get from a trace, or None: then it traces. Never raises."""
        started = time.perf_counter()
        reasons: list[str] = []
        try:
            session = sessions.current()
            if session.settings.mode == "off" or os.environ.get("PRECOMPILED") == "0":
                return None
            found = self._find(session, frame, reasons)
        except Exception as error:
            if sessions.current().settings.strict:
                raise
            code = error.code if isinstance(error, PrecompiledError) else "package-internal-error"
            self._count("fallbacks", code)
            log.info("no package for %s.%s (%s)", frame.module, frame.qualname, code, exc_info=True)
            reasons.append(f"{code}: {error}")
            found = None
        if found is not None:
            result, report = found
            report.find_s = time.perf_counter() - started
            report.reasons = tuple(reasons)
            self.reports.append(report)
            return result
        self._reasons = tuple(reasons)
        return None

    def _find(self, session: sessions.Session, frame: Frame, reasons: list[str]) -> tuple[Any, FunctionReport] | None:
        store = PackageStore(session.store.root)
        function = _function_key(frame)
        names: list[str | Entry] = [*store.names(function)]
        names += self.unchecked.get((frame.module, frame.qualname, frame.one_graph), [])
        if not names:
            return None
        here = requirements(frame.options)
        described = Descriptions()
        tried = 0
        for name in names:
            try:
                entry = self._entry(store, function, name) if isinstance(name, str) else name
                _check_requirements(entry.header.requires, here)
                if (differs := frames.passed_over(entry.header.locals, frame)) is not None:
                    raise Mismatch(differs)
                tried += 1
                if tried > MAX_TRIED:
                    reasons.append(
                        f"{len(names)} entries are there, and none of the {MAX_TRIED} newest is for this call"
                    )
                    return None
                if entry.header.kind == "skipped":
                    result, guards = self._skip(entry, frame), 0
                else:
                    result = self._use(session, entry, frame, described, check_source=isinstance(name, str))
                    guards = entry.header.guards
            except FileNotFoundError:
                continue  # evicted meanwhile
            except (Mismatch, StoreError) as reason:
                reasons.append(str(reason))
                log.info("%s.%s: %s", frame.module, frame.qualname, reason)
                continue
            store.touch(entry)
            frames.entries_of(frame.owner).append((entry.header.function, entry.name))
            state = "skipped" if entry.header.kind == "skipped" else "used"
            return result, FunctionReport(f"{frame.module}.{frame.qualname}", state, guards=guards)
        return None

    def _entry(self, store: PackageStore, function: str, name: str) -> Entry:
        known = self._read.get(name)
        if known is None:
            known = self._read[name] = store.read(function, name)
        return known

    def _skip(self, entry: Entry, frame: Frame) -> Any:
        kept = json.loads(entry.body)
        if (changed := frames.changed_source(kept["inlined"])) is not None:
            raise Mismatch(f"the source of {changed} has changed")
        if kept["locals"] != locals_digest(frame.local) or kept["tensors"] != frames.has_tensors(frame):
            raise Mismatch("it is called with other types than when it was left alone")
        return frames.skipped(frame, kept["reason"])

    def _use(
        self, session: sessions.Session, entry: Entry, frame: Frame, described: Descriptions, *, check_source: bool
    ) -> Any:
        self._counter += 1
        number = self._counter

        def name(placeholder: str) -> str:
            return f"__precompiled_{number}_{placeholder}"

        body = package_code.decode(entry.body, name)
        rebuilder = frames.usable(body, frame, described, name, check_source=check_source)
        install = frames.rebuilt(frame, rebuilder)
        return install([self._graph(session, graph) for graph in body.graphs], body, name)

    def _graph(self, session: sessions.Session, graph: Graph) -> Callable[..., Any]:
        """The callable of a graph, from its artifact; raises Mismatch when it is not there or not for here."""
        state = modes.capture(uses_cpu=graph.device == "cpu")
        changed = [name for name in state if state[name] != graph.modes.get(name)]
        if changed:
            raise Mismatch(
                f"{changed[0]} is {state[changed[0]]!r} here, {graph.modes.get(changed[0])!r} when it was traced"
            )
        for module, digest in graph.modules.items():
            user_modules.import_modules(module, digest)
        started = time.perf_counter()
        calls = GraphCalls(GraphReport(id=uuid.uuid4().hex, name=graph.name, key=graph.key))
        entries = session.store.lookup(graph.key)
        looked_up = time.perf_counter()
        if not entries:
            raise Mismatch(f"the artifact {graph.key[:12]} of {graph.name} is not in the store")
        saved = entries[0].manifest.compile_s
        if any(not entry.manifest.guards for entry in entries):
            entry = next(entry for entry in entries if not entry.manifest.guards)
            function = loading.load(session.store, entry, graph.modes, cudagraphs=graph.cudagraphs)
            served = counting(calls, function)
            calls.calls_before_flip = 0
        else:
            dispatch = Dispatch(calls, _eager(session, entries[0]), graph.size_inputs, lambda sizes: None)
            for entry in entries:
                function = loading.load(session.store, entry, graph.modes, cudagraphs=graph.cudagraphs)
                dispatch.serve_with(function, guard_check(entry.manifest.guards))
            served = dispatch.call
            calls.calls_before_flip = 0
        report = calls.mutable
        report.lookup_s, report.load_s = looked_up - started, time.perf_counter() - looked_up
        report.source, report.saved_s = "package", saved
        calls.swap.on(Event.HIT)
        session.ledger.add(calls)
        session.ledger.count(hits=1, saved_s=saved)
        return served

    # ------------------------------------------------------------------ recording

    def traced(self, frame: Frame, traced: Traced) -> None:
        """Keep what came of a trace. Never raises."""
        reasons, self._reasons = getattr(self, "_reasons", ()), ()
        report = FunctionReport(f"{frame.module}.{frame.qualname}", "recorded", reasons=reasons)
        self.reports.append(report)
        try:
            if traced.problem is not None:
                raise traced.problem
            session = sessions.current()
            if not session.settings.packages:
                raise NotPortable("packages are not recorded (PRECOMPILED_PACKAGES=1 does)", code="package-off")
            store = PackageStore(session.store.root)
            function, requires = _function_key(frame), requirements(frame.options)
            if traced.skip is not None:
                report.message = traced.skip
                kept = {
                    "reason": traced.skip,
                    "locals": locals_digest(frame.local),
                    "tensors": frames.has_tensors(frame),
                    "inlined": frames.sources(traced, frame.code),
                }
                body = json.dumps(kept, sort_keys=True).encode()
                header = fmt.Header(
                    function,
                    frame.module,
                    frame.qualname,
                    code_digest(frame.code),
                    frame.one_graph,
                    "skipped",
                    requires,
                )
                self._publish(store, header, body, frame, report)
                return
            made = traced.body
            assert made is not None
            report.guards = len(made.guards.guards)
            header = fmt.Header(
                function, frame.module, frame.qualname, code_digest(frame.code), frame.one_graph, "compiled", requires,
                [graph.key for graph in made.graphs], traced.locals, report.guards,
            )  # fmt: skip
            # Bytes now: the sources hold nothing of the user's, but who knows what the user's thread does next.
            body = package_code.encode(made, traced.names)
            self._publish(store, header, body, frame, report)
        except Exception as error:  # noqa: BLE001 - the trace went well; keeping it is our own affair
            report.state = "traced"
            report.reason = error.code if isinstance(error, PrecompiledError) else "package-internal-error"
            report.message = str(error)
            self._count("bypassed", report.reason)
            log.info("%s is not kept (%s): %s", report.name, report.reason, error)

    def _publish(
        self, store: PackageStore, header: fmt.Header, body: bytes, frame: Frame, report: FunctionReport
    ) -> None:
        entries = frames.entries_of(frame.owner)
        self.publisher.publish(lambda: entries.append((header.function, store.publish(header, body))), report)

    @staticmethod
    def _count(kind: str, code: str) -> None:
        sessions.current().ledger.count_reason(kind, code)


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


def _eager(session: sessions.Session, entry: Any) -> Callable[..., Any]:
    """The graph itself, for a call of sizes that no variant serves; decoded when there is one.

    Its program is read now: once Dynamo has the graph, a call must not fail because the artifact was evicted.
    """
    program = session.store.read_program(entry)
    if program is None:
        raise StoreError(
            f"the artifact {entry.manifest.key[:12]} is for some sizes, and does not say what it was compiled from",
            "Save the package again",
            code="artifact-program",
        )

    @functools.cache
    def graph() -> Any:
        from precompiled.graph import codec

        return codec.decode(capture.parse(program)["graph"])

    return lambda *args: graph()(*args)  # noqa: PLW0108 - not before the first call


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
                self._thread = threading.Thread(target=self._run, name="precompiled-packages", daemon=False)
                self._thread.start()

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
