"""Publishes a package entry for each frame that Dynamo traces. Later processes use the entries instead of a trace.

Dynamo calls ``find`` at each frame for which it has no valid code, and ``traced`` after each trace. If no package fits
a frame, Dynamo traces as usual, and the frame's report in ``reports`` says why.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from precompiled import parts
from precompiled.client import session as sessions
from precompiled.client.ledger import GraphReport
from precompiled.client.process import PROCESS
from precompiled.core import interruptions, spans
from precompiled.core.errors import code_of
from precompiled.graph import capture
from precompiled.packages import audit, requirements
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo import dynamo_frames, frame_entry
from precompiled.packages.dynamo.frame_entry import Frame, Graph, Traced
from precompiled.packages.entry_building import BuiltEntry, build_entry
from precompiled.packages.entry_search import EntrySearch, FrameSearch
from precompiled.packages.function_report import FunctionReport
from precompiled.packages.nearest_entry import nearest_first
from precompiled.packages.program import ANY, UNKNOWN, Program
from precompiled.packages.publisher import Publisher
from precompiled.packages.source_files import SourceFiles
from precompiled.store.packages import PackageStore
from precompiled.torch_internals.client import garbage_collection, structured_trace

log = logging.getLogger("precompiled.package")
_REMOTE = parts.REMOTE.get()  # not in a thread, because a fork would wait for the import

# Codes of the reasons for which an audit cannot compare a trace. These reasons lie in this process or host, not in the
# package.
_OF_THIS_PROCESS = ("package-graph", "package-internal-error", "package-passing", "package-profiler")


def switch_on() -> Automatic:
    """Make Dynamo look up packages before it traces. Idempotent. Raises NotPortable for an unsupported torch."""
    packages = PROCESS.packages
    if packages is None:
        PROCESS.packages = packages = Automatic()
    assert isinstance(packages, Automatic)
    dynamo_frames.install(packages)
    return packages


class Automatic:
    """The packages of this process (implements process.PackagesProtocol and dynamo/dynamo_frames.FrameHandler).

    ``reports``: if Dynamo has no code for a frame with tensors while packages are on, the frame gets a report.
    """

    def __init__(self) -> None:
        self.reports: list[FunctionReport] = []
        self.used: set[tuple[str, str]] = set()  # used or recorded entries: function, file name
        self.publisher = Publisher()
        self._source_files = SourceFiles()
        self.search = EntrySearch(self._source_files, self.used)
        self._looked = FrameSearch()

    def switch_off(self) -> None:
        dynamo_frames.remove()

    def files(self) -> dict[str, str]:
        """Map the path of each of the program's own files to the digest of the text that this process loaded."""
        return self._source_files.digests()

    def modules(self) -> dict[str, str]:
        """Map installed top-level modules that the program has loaded to digests (see ``SourceFiles.modules``)."""
        return self._source_files.modules()

    def flush(self, timeout_s: float | None = None) -> bool:
        return self.publisher.flush(timeout_s)

    def name_graph(
        self, function: Callable[..., Any], report: GraphReport, program: capture.SerializedGraph, held: list[Any]
    ) -> None:
        """Attach a graph's key and description to the graph's function (see the protocol). Never raises.

        A trace is recorded only if each of its graphs has a key and a description.
        """
        try:
            self._name_graph(function, report, program, held)
        except BaseException as error:  # noqa: BLE001 - the graph is compiled and must run
            interruptions.pass_on(error)
            self.failed(error)

    def _name_graph(
        self, function: Callable[..., Any], report: GraphReport, program: capture.SerializedGraph, held: list[Any]
    ) -> None:
        if program.cudagraphs or program.frozen:
            # No entry can serve these graphs. With CUDA graphs, parameters need marks that only a trace sets. An
            # artifact with frozen weights contains the values of the weights, and an entry does not record these
            # values.
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

    # ------------------------------------------------------------------ serving

    def find(self, frame: Frame) -> Any:
        """Serve a frame from a package. Returns Dynamo's result for the frame, or None if Dynamo must trace."""
        started = time.perf_counter()
        session: sessions.Session | None = None
        self._looked = looked = FrameSearch(weakref.ref(frame), started)
        try:
            session = sessions.current()
            looked.graphs = len(session.ledger)
            if session.is_off:
                return None
            with garbage_collection.seldom():
                looked.program = self._program(session)
                looked.requires = requirements.requirements(frame.options)
                if session.recorder is not None or session.stays_eager:
                    # captures of watch mode must trace, and a process that stays eager must run no compiled code
                    return None
                awaited = PROCESS.ahead is not None and PROCESS.ahead.under_way
                found = self.search.find(session, frame, looked)
                if found is None and awaited and looked.audited is None and session.came_ahead():
                    looked.reasons.clear()
                    looked.tried.clear()
                    looked.others.clear()
                    found = self.search.find(session, frame, looked)
        except Exception as error:
            interruptions.pass_on(error)
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
        session.outcomes.note_frame(report.name, spans.span_until_now("package", report.find_s))
        structured_trace.frame(vars(report), result)
        session.ledger.count(untraced=1)
        return result

    def _program(self, session: sessions.Session) -> Program:
        """The program that entries must belong to.

        Raises NotPortable if the program's source files are unknown and ``packages`` is "program".
        """
        if session.recorder is not None or session.settings.packages == "off":
            return ANY  # watch mode and load_package make entries for any program
        try:
            return self._source_files.program()
        except NotPortable:
            if session.settings.packages == "program":
                raise
            return UNKNOWN

    def ended(self) -> None:
        """Finish a frame, after a package served it or Dynamo traced it. Never raises."""
        self._source_files.leave_out()

    def failed(self, error: BaseException) -> None:
        """Count an unforeseen error. Dynamo traces the frame as usual."""
        sessions.current().ledger.count_reason("not_kept", code_of(error, "package-internal-error"))

    # ------------------------------------------------------------------ recording

    def traced(self, frame: Frame, traced: Traced) -> None:
        """Publish the result of a trace, or compare the result with the audited entry. Never raises."""
        # Under a torch function mode, Dynamo does not call ``find``, so ``_looked`` may belong to an earlier frame.
        looked = self._looked if self._looked.frame() is frame else FrameSearch()
        report = FunctionReport(frame.shown_name, "recorded", reasons=tuple(looked.reasons))
        try:
            session = sessions.current()
            if session.is_off:
                return
            self.reports.append(report)
            if looked.began:
                session.outcomes.note_frame(
                    report.name, spans.span_until_now("trace", time.perf_counter() - looked.began)
                )
            self._source_files.met([frame.qualname, *frame_entry.qualnames(traced)])
            session.ledger.count(traced=1)
            if looked.refused is not None:
                raise NotPortable(looked.refused, code="package-audit")
            if asked := frame_entry.device_numbers(traced):
                raise NotPortable(f"its code reads numbers of a GPU: {', '.join(asked)}", code="package-device-numbers")
            store, before = session.store.packages, looked.audited
            try:
                if looked.requires is None:
                    looked.program = self._program(session)
                    looked.requires = requirements.requirements(frame.options)
                complete = build_entry(frame, traced, looked.requires, looked.program, report)
                if before is not None:
                    made = complete()
            except NotPortable as reason:
                if before is not None and reason.code not in _OF_THIS_PROCESS:
                    raise audit.refuse(
                        store, before.header, f"the trace cannot be stored ({reason.code}: {reason})"
                    ) from reason
                raise
            if before is not None:
                differs = audit.difference((before.header, before.about), (made.header, made.about))
                if differs is not None:
                    raise audit.refuse(store, before.header, differs)
                report.state, report.message = "audited", audit.SAID
                return
            if session.settings.packages == "off":
                raise NotPortable(
                    "this process records no packages (PRECOMPILED_PACKAGES=program does)", code="package-off"
                )
            self._publish(store, complete, frame, looked, report)
        except Exception as error:  # noqa: BLE001 - the trace succeeded, so our error must not reach the user
            interruptions.pass_on(error)
            self._not_kept(report, error)
        structured_trace.frame(vars(report), traced.result)

    def raised(self, frame: Frame, problem: str, state: str) -> None:
        """Report that an error or an interruption ended the trace of a frame.

        If the trace had made a graph, the graph's report has the error instead.
        """
        session, looked = sessions.current(), self._looked
        if session.is_off or looked.frame() is not frame or len(session.ledger) > looked.graphs:
            return
        report = FunctionReport(frame.shown_name, state, message=problem)
        self.reports.append(report)
        spent = spans.span_until_now("trace", time.perf_counter() - looked.began)
        session.outcomes.note_frame(report.name, spent)

    def _not_kept(self, report: FunctionReport, error: BaseException) -> None:
        report.state, report.reason, report.message = "traced", code_of(error, "package-internal-error"), str(error)
        with suppress(Exception):  # the settings may be unreadable; torch.compile must continue
            sessions.current().ledger.count_reason("not_kept", report.reason)
        log.info("%s is not kept (%s): %s", report.name, report.reason, error)

    def _publish(
        self,
        store: PackageStore,
        complete: Callable[[], BuiltEntry],
        frame: Frame,
        looked: FrameSearch,
        report: FunctionReport,
    ) -> None:
        entries = dynamo_frames.entries_of(frame.owner)
        program, tried, reasons = looked.program, looked.tried, looked.reasons
        program.parse()

        # a thread runs ``write``, because the first call must not wait for pickling or the disk
        def write() -> None:
            made = complete()
            about = made.about.to_bytes()
            report.reasons = nearest_first((made.header, about), tried, reasons)
            header = replace(made.header, sources_code=program.code())
            name = store.publish(header, about, made.body)
            entries.append((header.function, name))
            self.used.add((header.function, name))
            if _REMOTE is not None:
                _REMOTE.put_entry(store.root, header.function, name)  # upload the entry, if this host has a remote

        self.publisher.publish(write, lambda error: self._not_kept(report, error))
