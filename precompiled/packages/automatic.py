"""Publishes packages of what Dynamo traces, and serves later processes from the packages without a trace.

Dynamo calls ``find`` at each frame for which it has no valid code, and ``traced`` after each trace. If a package may be
wrong for a frame, Dynamo traces as usual, and the frame's report in ``reports`` says why.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from precompiled.client import session as sessions
from precompiled.client.ledger import GraphReport
from precompiled.client.process import PROCESS
from precompiled.core import spans
from precompiled.core.errors import StoreError, code_of
from precompiled.graph import capture
from precompiled.packages import audit, graphs, requirements
from precompiled.packages.describe import difference
from precompiled.packages.describe.codes import code_digest, outermost
from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.describe.errors import Mismatch, NotPortable
from precompiled.packages.dynamo import (
    dynamo_frames,
    dynamo_state,
    entry_codec,
    frame_entry,
    installing,
    trace_recording,
)
from precompiled.packages.dynamo.frame_entry import Frame, Graph, Traced
from precompiled.packages.program import ANY, UNKNOWN, Program
from precompiled.packages.publisher import Publisher
from precompiled.packages.source_files import SourceFiles
from precompiled.remote import link
from precompiled.store import package_format as fmt
from precompiled.store.packages import Entry, PackageStore
from precompiled.torch_internals.client import garbage_collection, structured_trace
from precompiled.torch_internals.graph import compiler_config
from precompiled.version import switched_off

log = logging.getLogger("precompiled.package")

# How many entries are compared with a frame in full. Without this limit, a function that is called with new values each
# time would make each trace slower than the one before. Dynamo itself stops after 8 (recompile_limit).
MAX_TRIED = 16
# Codes of traces that an audit cannot compare, for a reason that lies in this process or host, not in the package.
_OF_THIS_PROCESS = ("package-graph", "package-internal-error", "package-passing", "package-profiler")


@dataclass
class FunctionReport:
    """The outcome for one frame for which Dynamo had no code.

    ``state`` is one of:

    - "used": served from a package.
    - "skipped": a package says that Dynamo leaves the frame uncompiled.
    - "recorded": traced, and written to a package.
    - "traced": traced, and not written to a package. ``reason`` has the code, ``message`` the explanation.
    - "audited": traced, to check a package; the results are equal (packages/audit.py).

    ``reasons`` says why each entry of the function was not used.
    """

    name: str  # module.qualified name; for a module of torch's own (nn.Sequential), the name of its class
    state: str
    reason: str = ""
    message: str = ""
    reasons: tuple[str, ...] = ()
    guards: int = 0
    find_s: float = 0.0


def switch_on() -> Automatic:
    """Make Dynamo look up packages before it traces. Idempotent. Raises NotPortable for an unsupported torch."""
    packages = PROCESS.packages
    if packages is None:
        PROCESS.packages = packages = Automatic()
    assert isinstance(packages, Automatic)
    dynamo_frames.install(packages)
    return packages


class VerifiedEntry(NamedTuple):
    """An entry that fits a frame. ``install`` gives the entry to Dynamo; ``discard`` undoes all that the check has
    changed.
    """

    install: Callable[[], Any]
    discard: Callable[[], None]
    functions: list[str]  # qualified names of the functions whose code the entry contains


@dataclass
class _Looked:
    """The result of a search for a frame's entry. It is kept for the trace that follows if no entry fits."""

    frame: Callable[[], Frame | None] = lambda: None  # weak: a Frame holds the locals of the user's frame
    began: float = 0.0  # when the search began, by time.perf_counter()
    # ``requires`` and ``program`` are computed before the trace, because the trace may change them.
    requires: dict[str, str] | None = None
    program: Program = ANY
    reasons: list[str] = field(default_factory=list)  # why each entry was not used
    others: list[str] = field(default_factory=list)  # names of entries that other programs recorded
    audited: Entry | None = None  # the entry that would have been used; the trace is compared with it
    refused: str | None = None  # why no entry of the function may be used (a failed audit)


class _Made(NamedTuple):
    """The parts of an entry, ready to be published."""

    header: fmt.Header
    about: fmt.About
    body: bytes


class Automatic:
    """The packages of this process (implements process.PackagesProtocol and dynamo/dynamo_frames.FrameHandler).

    ``reports`` has one report for each frame with tensors for which Dynamo had no code while packages were on.
    """

    def __init__(self) -> None:
        self.reports: list[FunctionReport] = []
        self.used: set[tuple[str, str]] = set()  # entries of the store that were used or recorded: function, file name
        self.publisher = Publisher()
        self._source_files = SourceFiles()
        self._counter = 0
        self._looked = _Looked()
        self._audits: bool | None = None  # whether this process audits its packages; None: not decided yet
        self._read: dict[str, Entry] = {}  # name -> an entry that was read and verified
        # Entries from load_package(check_source=False), by module, qualified name and fullgraph=. They are used even if
        # the function's code has changed.
        self.unchecked: dict[tuple[str, str, bool], list[Entry]] = {}

    def switch_off(self) -> None:
        dynamo_frames.remove()

    def files(self) -> dict[str, str]:
        """The program's own files as this process loaded them: path -> digest of the text."""
        return self._source_files.digests()

    def flush(self, timeout_s: float | None = None) -> bool:
        return self.publisher.flush(timeout_s)

    def name_graph(
        self, function: Callable[..., Any], report: GraphReport, program: capture.SerializedGraph, held: list[Any]
    ) -> None:
        """Attach the graph's key and description to its function (see the protocol). Never raises.

        An entry cannot be recorded if one of its graphs has no such description.
        """
        try:
            self._name_graph(function, report, program, held)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - the graph is compiled and must run
            self.failed(error)

    def _name_graph(
        self, function: Callable[..., Any], report: GraphReport, program: capture.SerializedGraph, held: list[Any]
    ) -> None:
        if program.cudagraphs or program.frozen:
            # CUDA graphs need marks that only a trace puts on parameters. With frozen weights, the artifact contains
            # the values, and an entry does not record which values these are.
            return
        graph = Graph(
            report.key,
            report.name,
            program.modes,
            program.cudagraphs,
            program.size_inputs,
            program.modules,
            program.device,
            groups=program.groups,
        )
        setattr(function, frame_entry.MARK, graph)
        setattr(function, frame_entry.HELD, held)

    # ------------------------------------------------------------------ using

    def find(self, frame: Frame) -> Any:
        """Serve a frame from a package. Returns the value that a trace would return to Dynamo, or None if Dynamo must
        trace.
        """
        started = time.perf_counter()
        session: sessions.Session | None = None
        self._looked = looked = _Looked(weakref.ref(frame), started)
        try:
            session = sessions.current()
            if _is_off(session):
                return None
            with garbage_collection.seldom():
                looked.program = self._program(session)
                looked.requires = requirements.requirements(frame.options)
                if session.recorder is not None or session.stays_eager:
                    # Captures of watch mode must trace, and a process that stays eager must not run compiled code
                    return None
                awaited = PROCESS.ahead is not None and PROCESS.ahead.under_way
                found = self._find(session, frame, looked)
                if found is None and awaited and looked.audited is None and session.came_ahead():
                    looked.reasons.clear()
                    looked.others.clear()
                    found = self._find(session, frame, looked)
        except Exception as error:
            code = code_of(error, "package-internal-error")
            if session is not None and not isinstance(error, NotPortable):  # traced() counts NotPortable
                session.ledger.count_reason("not_kept", code)
            log.info("no package for %s.%s (%s)", frame.module, frame.qualname, code, exc_info=True)
            looked.reasons.append(f"{code}: {error}")
            found = None
        if found is None or session is None:
            looked.program.fix()
            return None
        result, report = found
        report.find_s = time.perf_counter() - started
        report.reasons = tuple(looked.reasons)
        self.reports.append(report)
        session.note_frame(report.name, spans.span_until_now("package", report.find_s))
        structured_trace.frame(vars(report), result)
        session.ledger.count(untraced=1)
        return result

    def _program(self, session: sessions.Session) -> Program:
        """The program that entries must belong to.

        Raises NotPortable with ``packages = "program"`` if the program's source files are unknown.
        """
        if session.recorder is not None or session.settings.packages == "off":
            return ANY  # entries that watch mode and load_package make are valid for any program
        try:
            return self._source_files.program()
        except NotPortable:
            if session.settings.packages == "program":
                raise
            return UNKNOWN

    def _find(self, session: sessions.Session, frame: Frame, looked: _Looked) -> tuple[Any, FunctionReport] | None:
        store = session.store.packages
        looked.refused = store.refused(_function_key(frame))
        if looked.refused is not None:
            return None
        described = Descriptions()
        tried = 0
        program = None if session.settings.packages == "function" else looked.program
        for entry, check_source in self._entries(store, frame, program, looked):
            try:
                requirements.check(entry.header.requires, looked.requires or {})
                if (differs := installing.passed_over(entry.header.locals, frame)) is not None:
                    raise Mismatch(differs)
                tried += 1
                if tried > MAX_TRIED:
                    looked.reasons.append(f"none of the {MAX_TRIED} newest entries is for this call")
                    return None
                verified = self._verify(session, entry, frame, program, described, check_source=check_source)
                if check_source and self._is_audited(session, entry, frame):
                    verified.discard()
                    looked.audited = entry
                    return None
                result = verified.install()
                self._source_files.met(verified.functions)
            except (Mismatch, NotPortable, StoreError) as reason:  # NotPortable: an object has no description
                if _is_of_another_file(entry, frame):
                    continue
                place = _place(entry, reason.guard) if isinstance(reason, Mismatch) else ""
                looked.reasons.append(f"{reason}{difference.at(place)}")
                log.info("%s.%s: %s", frame.module, frame.qualname, reason)
                continue
            store.touch(entry)
            # An unchecked entry was made for another source and is not in the store, so it cannot be saved
            if check_source:
                dynamo_frames.entries_of(frame.owner).append((entry.header.function, entry.name))
                self.used.add((entry.header.function, entry.name))
            state = "skipped" if entry.header.kind == "skipped" else "used"
            return result, FunctionReport(_shown(frame), state, guards=entry.header.guards)
        # Entries of other programs are mentioned only if no entry of this program gave a reason.
        if not looked.reasons and any(self._is_of_its_past(store, frame, name) for name in looked.others[:MAX_TRIED]):
            looked.reasons.append("the program had other code when it was traced")
        return None

    def _is_of_its_past(self, store: PackageStore, frame: Frame, name: str) -> bool:
        """Whether an entry recorded by another program may come from this program before an edit."""
        if frame.module != "__main__":
            return True
        try:
            return not _is_of_another_file(store.read(_function_key(frame), name), frame)
        except (StoreError, OSError):
            return False

    def _entries(
        self, store: PackageStore, frame: Frame, program: Program | None, looked: _Looked
    ) -> Iterator[tuple[Entry, bool]]:
        """The entries of a frame's function, newest first, each with whether its source must be checked.

        ``program``: yield only entries recorded in this program; None: in any program. Entries of skipped frames come
        last: the frame may have been compiled for other values.
        """
        function = _function_key(frame)
        skipped = []
        for name in store.names(function):
            try:
                entry = self._read.get(name)
                if program is not None:
                    # There may be many large entries of other programs, so read only the first line.
                    header = entry.header if entry is not None else store.header(function, name)
                    if header is not None and not program.made(header.sources, header.sources_code):
                        looked.others.append(name)
                        continue
                if entry is None:
                    entry = self._read[name] = store.read(function, name)
            except FileNotFoundError:
                continue  # evicted after names() listed it
            except (StoreError, OSError) as reason:
                looked.reasons.append(str(reason))
                continue
            if entry.header.kind == "skipped":
                skipped.append(entry)
            else:
                yield entry, True
        for entry in self.unchecked.get((frame.module, frame.qualname, frame.one_graph), []):
            yield entry, False
        for entry in skipped:
            yield entry, True

    def _is_audited(self, session: sessions.Session, entry: Entry, frame: Frame) -> bool:
        """Whether to trace although an entry fits. Only a function's first trace is audited, because later traces know
        which sizes have changed before.
        """
        if self._audits is None:
            self._audits = audit.is_drawn(session.settings.package_audit)
        return self._audits and entry.header.first and frame.first

    def _verify(
        self,
        session: sessions.Session,
        entry: Entry,
        frame: Frame,
        program: Program | None,
        described: Descriptions,
        *,
        check_source: bool,
    ) -> VerifiedEntry:
        self._counter += 1
        number = self._counter

        def name(placeholder: str) -> str:
            return f"__precompiled_{number}_{placeholder}"

        if entry.header.kind == "skipped":
            stays = installing.make_skip_result(frame, entry_codec.decode(entry.body, name), name)
            return VerifiedEntry(lambda: stays, lambda: None, [])
        artifacts = {key: session.store.lookup(key) for key in entry.header.artifacts}
        body = entry_codec.decode(entry.body, name)
        if program is not None and program.sources != entry.header.sources and body.later:
            described = Descriptions(program.before(body.later))
        undo = ExitStack()
        with installing.or_discarded(body, frame, name, undo):
            rebuilder = installing.usable(body, frame, described, name, undo, check_source=check_source)
            # Checked after the guards: a failed guard must be the reported reason even if the artifact is missing.
            missing = next((key for key, found in artifacts.items() if not found), None)
            if missing is not None:
                raise Mismatch(f"the artifact {missing[:12]} is not in the store")
            install = installing.rebuilt(frame, rebuilder)
            context, safe_point = compiler_config.context(frame.options), session.safe_points.of(frame.code)
            loaded = [graphs.load(session, graph, artifacts[graph.key], context, safe_point) for graph in body.graphs]

        def use() -> Any:
            with installing.or_discarded(body, frame, name, undo):
                result = install([function for function, _calls in loaded], body, name)
            structured_trace.belong([calls.report.id for _function, calls in loaded], result)
            for _function, calls in loaded:  # counted only now, because the entry is used
                session.ledger.add(calls)
                session.note(calls.snapshot())
                session.ledger.count(hits=1, saved_s=calls.report.saved_s)
                session.loaded_from(artifacts[calls.report.key][0])
            return result

        functions = [frame.qualname, *(".".join(attributes) for (_module, attributes), _digest in body.inlined)]
        return VerifiedEntry(use, lambda: installing.discard(body, frame, name, undo), functions)

    def ended(self) -> None:
        """Finish a frame that was served or traced. Never raises."""
        self._source_files.leave_out()

    def failed(self, error: BaseException) -> None:
        """Count an unforeseen error. The frame is traced as usual."""
        sessions.current().ledger.count_reason("not_kept", code_of(error, "package-internal-error"))

    # ------------------------------------------------------------------ recording

    def traced(self, frame: Frame, traced: Traced) -> None:
        """Publish the result of a trace, or compare it with the audited entry. Never raises."""
        # ``find`` was not called under a torch function mode, because no frame can be kept under one.
        looked = self._looked if self._looked.frame() is frame else _Looked()
        report = FunctionReport(_shown(frame), "recorded", reasons=tuple(looked.reasons))
        try:
            session = sessions.current()
            if _is_off(session):
                return
            self.reports.append(report)
            if looked.began:
                session.note_frame(report.name, spans.span_until_now("trace", time.perf_counter() - looked.began))
            self._source_files.met([frame.qualname, *frame_entry.qualnames(traced)])
            session.ledger.count(traced=1)
            if looked.refused is not None:
                raise NotPortable(looked.refused, code="package-audit")
            if asked := frame_entry.device_numbers(traced):
                raise NotPortable(f"its code asks a GPU: {', '.join(asked)}", code="package-device-numbers")
            store, before = session.store.packages, looked.audited
            try:
                if looked.requires is None:
                    looked.program = self._program(session)
                    looked.requires = requirements.requirements(frame.options)
                complete = self._entry(frame, traced, looked, report)
                if before is not None:
                    made = complete()
            except NotPortable as reason:
                if before is not None and reason.code not in _OF_THIS_PROCESS:
                    raise audit.refuse(store, before.header, f"it cannot be kept ({reason.code}: {reason})") from reason
                raise
            if before is not None:
                differs = audit.difference((before.header, before.about), (made.header, made.about))
                if differs is not None:
                    raise audit.refuse(store, before.header, differs)
                report.state, report.message = "audited", audit.SAID
                return
            if session.settings.packages == "off":
                raise NotPortable("packages are not recorded (PRECOMPILED_PACKAGES=program does)", code="package-off")
            self._publish(store, complete, frame, looked.program, report)
        except Exception as error:  # noqa: BLE001 - the trace succeeded: an error of ours must not reach the user
            self._not_kept(report, error)
        structured_trace.frame(vars(report), traced.result)

    def _entry(self, frame: Frame, traced: Traced, looked: _Looked, report: FunctionReport) -> Callable[[], _Made]:
        """Return a function that builds the entry of a trace and holds no object of the user's.

        Raises NotPortable, as does the returned function.
        """
        if traced.body is not None:
            trace_recording.check_bytecode(traced, frame)
        if traced.problem is not None:
            raise traced.problem
        header = fmt.Header(
            _function_key(frame),
            frame.module,
            frame.qualname,
            code_digest(frame.code),
            frame.one_graph,
            "compiled" if traced.skip is None else "skipped",
            looked.requires or {},
            first=frame.first,
            sources=looked.program.sources,
        )
        if traced.skip is not None:
            report.message = traced.skip
            if dynamo_state.passing():
                raise NotPortable(
                    "errors are suppressed or Dynamo is debugged: it may be left alone for this once",
                    code="package-passing",
                )
            left, reason = trace_recording.make_skipped_frame(frame, traced), traced.skip
            data = entry_codec.encode(left, traced.names)
            header = replace(header, meaning=hashlib.sha256(data).hexdigest())
            return lambda: _Made(header, fmt.About(reason=reason), data)
        # ``complete`` must not hold ``traced``, which holds objects that the trace has read.
        body, names, about, locals_ = traced.body, traced.names, traced.about, traced.locals
        assert body is not None
        met = frame_entry.qualnames(traced)
        for function, code in looked.program.later().items():
            if outermost(code) not in met and code_digest(code) in traced.described:
                body.later[function] = code_digest(code)
        report.guards = len(body.guards.guards)

        def complete() -> _Made:
            bytecode = frame_entry.bytecode_digest(body, names)
            whole = replace(
                header,
                artifacts=[graph.key for graph in body.graphs],
                locals=locals_,
                guards=report.guards,
                program=bytecode,
                meaning=frame_entry.meaning(body, about, bytecode),
            )
            return _Made(whole, about, entry_codec.encode(body, names))

        return complete

    def _not_kept(self, report: FunctionReport, error: BaseException) -> None:
        report.state, report.reason, report.message = "traced", code_of(error, "package-internal-error"), str(error)
        with suppress(Exception):  # the settings may be unreadable; torch.compile must go on
            sessions.current().ledger.count_reason("not_kept", report.reason)
        log.info("%s is not kept (%s): %s", report.name, report.reason, error)

    def _publish(
        self, store: PackageStore, complete: Callable[[], _Made], frame: Frame, program: Program, report: FunctionReport
    ) -> None:
        entries = dynamo_frames.entries_of(frame.owner)
        program.parse()

        # ``write`` also pickles the entry, which takes longer; the first call must not wait for pickling or disk
        def write() -> None:
            made = complete()
            header = replace(made.header, sources_code=program.code())
            name = store.publish(header, made.about.to_bytes(), made.body)
            entries.append((header.function, name))
            self.used.add((header.function, name))
            link.put_entry(store.root, header.function, name)  # upload the entry, if this host has a remote

        self.publisher.publish(write, lambda error: self._not_kept(report, error))


def _is_off(session: sessions.Session) -> bool:
    """Whether packages were switched off after the hook was installed. Reads the settings again."""
    return session.settings.mode == "off" or switched_off(os.environ)


def _shown(frame: Frame) -> str:
    """The frame's name for reports. For a module of torch's own (nn.Sequential), the name of its class."""
    wrapped = type(frame.local.get("fn"))
    if frame.module == fmt.WRAPPER:
        return f"{wrapped.__module__}.{wrapped.__qualname__}"
    return f"{frame.module}.{frame.qualname}"


def _is_of_another_file(entry: Entry, frame: Frame) -> bool:
    """Whether the function of a ``__main__`` module in an entry comes from another file.

    Such an entry belongs to a different program, so it does not explain why this program's frame was not found.
    """
    file = frame.code.co_filename
    if frame.module != "__main__" or file.startswith("<"):
        return False
    try:
        return fmt.are_of_other_files(fmt.files_of(entry.header, fmt.About.parse(entry.about)), {os.path.abspath(file)})
    except StoreError:
        return False


def _place(entry: Entry, guard: int | None) -> str:
    """The line of the user's code that a guard came from, or "" if unknown."""
    try:
        return "" if guard is None else fmt.About.parse(entry.about).guards[guard].place
    except (StoreError, IndexError):
        return ""


def _function_key(frame: Frame) -> str:
    return fmt.function_key(frame.module, frame.qualname, code_digest(frame.code), one_graph=frame.one_graph)


def decode_body(entry: Entry) -> frame_entry.Body:
    """The body of an entry, with placeholder names. The store has verified its digest; its pickle can run code."""
    body: frame_entry.Body = entry_codec.decode(entry.body, lambda placeholder: f"__precompiled_0_{placeholder}")
    return body
