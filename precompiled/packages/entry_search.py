"""Finds and verifies the stored entry that fits a frame."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from precompiled.client import session as sessions
from precompiled.core import interruptions, sampling
from precompiled.core.errors import StoreError
from precompiled.packages import graphs, requirements
from precompiled.packages.describe import difference
from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.describe.errors import Mismatch, NotPortable
from precompiled.packages.dynamo import dynamo_frames, entry_codec, frame_entry, installing
from precompiled.packages.dynamo.frame_entry import Frame
from precompiled.packages.function_report import OTHER_PROGRAMS, FunctionReport
from precompiled.packages.nearest_entry import TriedEntry
from precompiled.packages.program import ANY, Program
from precompiled.packages.source_files import SourceFiles
from precompiled.store import package_format as fmt
from precompiled.store.packages import Entry, PackageStore
from precompiled.torch_internals.client import structured_trace
from precompiled.torch_internals.graph import compiler_config

log = logging.getLogger("precompiled.package")

# How many entries are compared in full with a frame. Without a limit, the search would take longer after each trace of
# a function that gets new values at each call. Dynamo itself stops after 8 traces (recompile_limit).
MAX_TRIED = 16


class VerifiedEntry(NamedTuple):
    """An entry that fits a frame. ``install`` gives the entry to Dynamo. ``discard`` undoes what the check changed."""

    install: Callable[[], Any]
    discard: Callable[[], None]
    functions: list[str]  # qualified names of the functions whose code the entry contains


@dataclass
class FrameSearch:
    """The result of a search for a frame's entry. If no entry fits, the frame's trace uses the result."""

    frame: Callable[[], Frame | None] = lambda: None  # weak: a Frame holds the locals of the user's frame
    began: float = 0.0  # when the search began, by time.perf_counter()
    graphs: int = 0  # the number of graphs that the process had before the search
    # ``requires`` and ``program`` describe the process before the trace, because the trace may change both.
    requires: dict[str, str] | None = None
    program: Program = ANY
    reasons: list[str] = field(default_factory=list)  # why each entry was not used
    tried: list[TriedEntry] = field(default_factory=list)  # the entries that were not used, with their reasons
    others: list[str] = field(default_factory=list)  # names of entries that other programs recorded
    audited: Entry | None = None  # the entry that fits and is compared with the trace
    refused: str | None = None  # why no entry of the function may be used (a failed audit)


class EntrySearch:
    """Searches the entries of this process's store.

    The search reports the functions of each used entry to ``source_files``, and adds the entry to ``used``.
    """

    def __init__(self, source_files: SourceFiles, used: set[tuple[str, str]]) -> None:
        self._source_files = source_files
        self._used = used
        self._counter = 0
        self._audits: bool | None = None  # whether this process audits its packages; None: undecided
        self._read: dict[str, Entry] = {}  # maps a name to the verified entry
        # Entries from load_package(check_source=False), by module, qualified name and fullgraph=. These entries are
        # valid even if the function's code has changed.
        self.unchecked: dict[tuple[str, str, bool], list[Entry]] = {}

    def find(self, session: sessions.Session, frame: Frame, looked: FrameSearch) -> tuple[Any, FunctionReport] | None:
        """Return Dynamo's result for a frame from the newest entry that fits, and the report. None if Dynamo must
        trace. Then ``looked`` has the reasons.
        """
        store = session.store.packages
        looked.refused = store.refused(frame.function_key)
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
                    looked.reasons.append(f"none of the {MAX_TRIED} newest entries fits this call")
                    return None
                verified = self._verify(session, entry, frame, program, described, check_source=check_source)
                if check_source and self._is_audited(session, entry, frame):
                    verified.discard()
                    looked.audited = entry
                    return None
                result = verified.install()
                self._source_files.met(verified.functions)
            except (Mismatch, NotPortable, StoreError) as reason:  # NotPortable: an object has no description
                interruptions.pass_on(reason)
                if _is_of_another_file(entry, frame):
                    continue
                place = _place(entry, reason.guard) if isinstance(reason, Mismatch) else ""
                looked.reasons.append(f"{reason}{difference.at(place)}")
                looked.tried.append(TriedEntry(entry, looked.reasons[-1]))
                log.info("%s.%s: %s", frame.module, frame.qualname, reason)
                continue
            store.touch(entry)
            # An unchecked entry is not in the store, so save_package cannot save it.
            if check_source:
                dynamo_frames.entries_of(frame.owner).append((entry.header.function, entry.name))
                self._used.add((entry.header.function, entry.name))
            state = "skipped" if entry.header.kind == "skipped" else "used"
            return result, FunctionReport(frame.shown_name, state, guards=entry.header.guards)
        # Mention entries of other programs only if no entry of this program gave a reason.
        if not looked.reasons and any(self._is_of_its_past(store, frame, name) for name in looked.others[:MAX_TRIED]):
            looked.reasons.append(OTHER_PROGRAMS)
        return None

    def _is_of_its_past(self, store: PackageStore, frame: Frame, name: str) -> bool:
        """Whether this program may have recorded an entry before an edit of its code."""
        if frame.module != "__main__":
            return True
        try:
            return not _is_of_another_file(store.read(frame.function_key, name), frame)
        except (StoreError, OSError) as error:
            interruptions.pass_on(error)
            return False

    def _entries(
        self, store: PackageStore, frame: Frame, program: Program | None, looked: FrameSearch
    ) -> Iterator[tuple[Entry, bool]]:
        """Yield the entries of a frame's function, newest first, and whether their sources must be checked.

        ``program``: yield only entries recorded in this program; None: in any program. Entries of skipped frames come
        last, because another entry may compile the frame.
        """
        function = frame.function_key
        skipped = []
        for name in store.names(function):
            try:
                entry = self._read.get(name)
                if program is not None:
                    # Read only the first line, because other programs may have many large entries.
                    header = entry.header if entry is not None else store.header(function, name)
                    if header is not None and not program.made(header.sources, header.sources_code):
                        looked.others.append(name)
                        continue
                if entry is None:
                    entry = self._read[name] = store.read(function, name)
            except FileNotFoundError:
                continue  # evicted since names()
            except (StoreError, OSError) as reason:
                interruptions.pass_on(reason)
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
        """Whether to trace although an entry fits.

        Audits only a function's first trace. Later traces depend on which sizes have changed.
        """
        if self._audits is None:
            # In the mode "lookup", a server starts from a base store, and a trace would delay its first reply.
            fraction = 0.0 if session.settings.mode == "lookup" else session.settings.package_audit
            self._audits = sampling.is_drawn(fraction)
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
            # Check the artifacts after the guards, so that a failed guard is reported before a missing artifact.
            missing = next((key for key, found in artifacts.items() if not found), None)
            if missing is not None:
                rebuilder.build(None)  # raises Mismatch if the call fails a guard
                raise Mismatch(f"the artifact {missing[:12]} is not in the store")
            install = installing.rebuilt(frame, rebuilder)
            context, safe_point = compiler_config.context(frame.options), session.safe_points.of(frame.code)
            loaded = [graphs.load(session, graph, artifacts[graph.key], context, safe_point) for graph in body.graphs]

        def use() -> Any:
            with installing.or_discarded(body, frame, name, undo):
                result = install([function for function, _calls in loaded], body, name)
            structured_trace.belong([calls.report.id for _function, calls in loaded], result)
            for _function, calls in loaded:  # counted here, because only a used entry counts
                session.ledger.add(calls)
                session.outcomes.note(calls.snapshot())
                session.ledger.count(hits=1, saved_s=calls.report.saved_s)
                session.loaded_from(artifacts[calls.report.key][0])
            return result

        functions = [frame.qualname, *(".".join(attributes) for (_module, attributes), _digest in body.inlined)]
        return VerifiedEntry(use, lambda: installing.discard(body, frame, name, undo), functions)


def _is_of_another_file(entry: Entry, frame: Frame) -> bool:
    """Whether the functions of entry and frame are both in ``__main__``, but in different files.

    Such an entry belongs to a different program, so it does not explain this program's trace.
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


def decode_body(entry: Entry) -> frame_entry.Body:
    """The body of an entry, with placeholder names. Decoding can run code. The store has verified the digest."""
    body: frame_entry.Body = entry_codec.decode(entry.body, lambda placeholder: f"__precompiled_0_{placeholder}")
    return body
