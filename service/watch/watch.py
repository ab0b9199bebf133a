"""One watch: its registration, its sources, its captures and its status."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from precompiled.service.watch.capture import Capture, CapturedGraph, End
from precompiled.service.watch.files import ABSENT, Files, saved_at
from precompiled.service.watch.plan import Plan
from precompiled.service.watch.registry import Good, Record

from precompiled import wire
from precompiled.core.errors import PrecompiledError
from precompiled.store.artifacts import Store

log = logging.getLogger("precompiled.watch")

MAX_VERIFICATIONS = 2  # the maximum number of repetitions of a capture whose graphs have symbolic sizes
GRAPHS_SHOWN = 100
REASON_CHARS = 2000
SHORT_CHARS = 300
ENDED_BADLY = ("failed", "quarantined", "dropped")


@dataclass
class CaptureResult:
    """The results of the last successful capture."""

    sources: dict[str, str]
    graphs: dict[str, CapturedGraph]  # maps a graph's id to the graph
    fake: bool = False
    note: str = ""
    complete: bool = False
    packages: int = 0  # number of functions whose packages the capture has written

    def keys(self) -> set[str]:
        return {graph.key for graph in self.graphs.values()}


@dataclass
class Tools:
    """Functions of the watcher that its watches call."""

    files: Files
    begin_capture: Callable[[RunningWatch], Capture]  # raises OSError
    cancel: Callable[[list[str]], None]
    save: Callable[[RunningWatch], None]


@dataclass(eq=False)
class RunningWatch:
    id: str
    registration: wire.Registration
    tools: Tools
    plan: Plan = field(default_factory=Plan)
    capture: Capture | None = None
    good: CaptureResult | None = None
    error: str = ""  # the error of the last capture, if it failed
    edited: str = ""
    edited_at: float = 0.0
    ready_s: float = 0.0
    capture_s: float = 0.0
    captures: int = 0
    real: str = ""  # why the last capture needed real tensors
    _expected: dict[str, str] = field(default_factory=dict)  # maps the path of a source to its last known digest
    # maps the id of a submit to its key, until its job has ended
    _awaited: dict[str, str] = field(default_factory=dict)
    _verifications: int = 0
    _written: set[str] = field(default_factory=set)  # files that its own captures write, so not sources

    # ------------------------------------------------ sources

    @property
    def sources(self) -> set[str]:
        return set(self._expected)

    @property
    def name(self) -> str:
        return " ".join(self.registration.command)

    def named_files(self) -> list[str]:
        """Return the registration's ``files``, and the files among the arguments of its command."""
        found = list(self.registration.files)
        if self.registration.kind == "run":
            # command[0] is left out: a new interpreter would change the keys of all graphs anyway.
            for argument in self.registration.command[1:]:
                for text in (argument, argument.partition("=")[2]):
                    path = os.path.normpath(os.path.join(self.registration.directory, text))
                    if text and os.path.isfile(path):
                        found.append(path)
        return [path for path in found if path not in self._written]

    def restore(self, record: Record, is_there: Callable[[str], bool]) -> None:
        """After a restart, reuse the last good capture.

        Capture again if there is no good capture, if it was incomplete, if a source has changed, or if an artifact is
        missing.
        """
        good = record.good
        if good is None:
            self.plan.begin(time.monotonic())
            return
        graphs = {
            str(number): CapturedGraph(str(number), graph.name, graph.key, graph.state, graph.reason)
            for number, graph in enumerate(good.graphs)
        }
        self.good = CaptureResult(good.sources, graphs, good.fake, good.note, good.complete, good.packages)
        self.edited, self.edited_at = good.edited, good.edited_at
        self._expected = dict(good.sources)
        changed = self.tools.files.changed(self._expected)
        if changed:
            self._note_edit(changed)
        served = [graph.key for graph in graphs.values() if graph.state in ("reused", "ready")]
        self.good.complete = good.complete and all(map(is_there, served))
        if changed or not self.good.complete:
            self.plan.begin(time.monotonic())

    def look(self, now: float) -> bool:
        """Compare the sources with their last known digests. Returns whether one has changed."""
        changed = self.tools.files.changed(self._expected)
        if not changed:
            return False
        self._note_edit(changed)
        # The new digests are known from now on, so the next difference is the next edit.
        self._expected.update({path: self.tools.files.digest(path) for path in changed})
        if self.plan.edited(now):
            log.info("watch %s: %s was saved again, so its capture is stopped", self.id, self.edited)
            self._drop_capture()
        return True

    def _note_edit(self, changed: list[str]) -> None:
        self.edited_at, self.edited = max((saved_at(path), path) for path in changed)
        self._verifications = 0

    # ------------------------------------------------ captures

    def tick(self, now: float) -> bool:
        """Begin a capture if one is due. Returns whether the status has changed."""
        if not self.plan.is_due(now):
            return False
        if self.good is not None and self.good.complete and not self.tools.files.changed(self.good.sources):
            # A source was changed and changed back (by a checkout, for example): the last good capture is valid.
            self.plan.unneeded()
            self._expected = dict(self.good.sources)
            self.error = ""
            self.ready_s = time.time() - self.edited_at if self.edited_at else 0.0
            return True
        self._begin()
        return True

    def _begin(self) -> None:
        self.plan.started()
        known = {*self._expected, *self.named_files(), *(self.good.sources if self.good else ())}
        self._expected = {path: self.tools.files.digest(path) for path in known}
        try:
            self.capture = self.tools.begin_capture(self)
        except (OSError, ValueError) as error:
            self.plan.ended()
            self.error = f"the capture cannot be started: {error}"
            return
        self.captures += 1
        log.info("watch %s: capture %d begins (%s)", self.id, self.captures, self.edited or "first")

    def check(self, now: float) -> bool:
        """Check the running capture, and handle its end. Returns whether it has ended."""
        if self.capture is None:
            return False
        end = self.capture.check(now)
        if end is None:
            return False
        capture = self._drop_capture()
        self.plan.ended()
        self.capture_s = now - capture.started
        if end.error:
            self._went_wrong(capture, end)
        else:
            self._went_well(capture, end)
        self.tools.save(self)
        self.look(now)  # a source may have been saved after the capture read it
        return True

    def _drop_capture(self) -> Capture:
        capture = self.capture
        assert capture is not None
        self.capture = None
        capture.close()
        # Remember the capture's submits, because the next good capture cancels those that are no longer needed.
        self._awaited.update({g.id: g.key for g in capture.graphs.values() if g.state == "compiling"})
        return capture

    def on_report(self, message: Mapping[str, object]) -> None:
        """Handle a report of the running capture."""
        assert self.capture is not None
        self.capture.on_report(message)
        for path in self.capture.written - self._written:
            self._written.add(path)
            self._expected.pop(path, None)
            if self.good is not None:
                self.good.sources.pop(path, None)

    def _digests(self, capture: Capture) -> dict[str, str]:
        return {
            path: digest or self.tools.files.digest(path)
            for path, digest in capture.sources.items()
            if path not in self._written
        }

    def _went_wrong(self, capture: Capture, end: End) -> None:
        self.error = end.error
        self._expected.update(self._digests(capture))
        self._expected.update({path: self.tools.files.digest(path) for path in end.missing})
        log.info("watch %s: the capture failed: %s", self.id, end.error.strip().rpartition("\n")[2])

    def _went_well(self, capture: Capture, end: End) -> None:
        self.error = ""
        self.real = end.note if self.registration.kind == "entry" and not end.fake else ""
        sources = {path: self._expected[path] for path in self.named_files() if path in self._expected}
        sources.update(self._digests(capture))
        self.good = CaptureResult(sources, capture.graphs, end.fake, end.note, packages=len(capture.packages))
        self._expected = dict(sources)
        # Cancel submits of earlier captures only, because this capture has submitted every graph that is still needed.
        obsolete = [id for id in self._awaited if id not in capture.graphs]
        if obsolete:
            self.tools.cancel(obsolete)
        self._awaited = {id: key for id, key in self._awaited.items() if id in capture.graphs}
        log.info("watch %s: captured %d graphs, %d to compile", self.id, len(capture.graphs), len(self._awaited))
        self._settle()

    # ------------------------------------------------ jobs

    def job_ended(self, ids: Collection[str], state: str, why: str) -> bool:
        """Handle the daemon's report that a job has ended. Returns whether a graph of this watch waited for the job.

        Graphs are found by the ids of submits, since a job of the same key may belong to another store.
        """
        graphs = [graph for graph in self._open_graphs() if graph.id in ids]
        for graph in graphs:
            if state in ENDED_BADLY:
                graph.state, graph.reason = "failed", self._describe_failure(graph.key, why or state)
            else:
                graph.state = "ready"
        if graphs:
            self._settle()
        return bool(graphs)

    def _describe_failure(self, key: str, code: str) -> str:
        """Return a failed job's code and, to save a search in the log, the worker's error from the store."""
        try:
            failure = Store(Path(self.registration.store)).failure(key)
        except PrecompiledError:
            failure = None  # show only the code
        if failure is None or failure.reason != code:
            return code
        return f"{code}: {failure.message.strip()}"[:REASON_CHARS]

    def look_in(self, names: Callable[[str], set[str]]) -> bool:
        """Look for artifacts, in case the daemon's message was lost. ``names(key)``: the key's files in the store."""
        found = []
        for graph in self._open_graphs():
            slots = {name.rpartition(".")[2] for name in names(graph.key)} - {str(slot) for slot in graph.slots}
            if slots - {"failed"}:
                found.append(graph.id)
        return self.job_ended(found, "published", "")

    @property
    def waits_for_jobs(self) -> bool:
        return bool(self._open_graphs())

    def _open_graphs(self) -> list[CapturedGraph]:
        held = [
            *(self.good.graphs.values() if self.good else ()),
            *(self.capture.graphs.values() if self.capture else ()),
        ]
        return [graph for graph in held if graph.state == "compiling"]

    def _settle(self) -> None:
        """If no graph is compiling, the watch becomes ready, or captures again to check the guards of new variants."""
        good = self.good
        if good is None or good.complete or any(graph.state == "compiling" for graph in good.graphs.values()):
            return
        self._awaited = {}
        if any(graph.dynamic and graph.state == "ready" for graph in good.graphs.values()) and (
            self._verifications < MAX_VERIFICATIONS
        ):
            # A compile adds guards on the sizes of its graph. A call that fails these guards requests another variant
            # or is retraced. Only another capture shows whether a call in the next run fails the guards.
            self._verifications += 1
            self.plan.begin(time.monotonic())
            return
        good.complete = True
        if not self.plan.due and not self.capture:
            self.ready_s = time.time() - self.edited_at if self.edited_at else 0.0
            log.info("watch %s: ready, %.2f s after the save", self.id, self.ready_s)
        self.tools.save(self)

    # ------------------------------------------------ ends

    def close(self, *, cancel: bool) -> None:
        if self.capture is not None:
            self._drop_capture()
        if cancel and self._awaited:
            self.tools.cancel(list(self._awaited))

    def record(self) -> Record:
        good = self.good
        if good is None:
            return Record(self.registration)
        graphs = [wire.WatchedGraph(g.name, g.key, g.state, g.reason) for g in good.graphs.values()]
        return Record(
            self.registration,
            Good(good.sources, graphs, good.fake, good.note, good.complete, self.edited, self.edited_at, good.packages),
        )

    def status(self) -> wire.WatchStatus:
        good, capture = self.good, self.capture
        shown = list(capture.graphs.values()) if capture else list(good.graphs.values()) if good else []
        counts = {
            state: sum(g.state == state for g in shown)
            for state in ("reused", "compiling", "ready", "failed", "bypassed")
        }
        if capture is not None:
            state = "capturing"
        elif self.plan.due is not None:
            state = "compiling" if self._verifications else "waiting"
        elif self.error:
            state = "failed"
        elif counts["compiling"]:
            state = "compiling"
        elif counts["failed"]:
            state = "failed"
        else:
            state = "ready" if good is not None else "waiting"
        error = self.error
        if not error and state == "failed":
            error = "\n".join(f"{g.name}: {g.reason}" for g in shown if g.state == "failed")
        return wire.WatchStatus(
            id=self.id,
            name=self.name[:500],
            kind=self.registration.kind,
            directory=self.registration.directory,
            state=state,
            error=error[-8000:],
            note=good.note if good else "",
            edited=self.edited,
            edited_at=self.edited_at,
            captured=len(shown),
            **counts,
            graphs=[wire.WatchedGraph(g.name, g.key, g.state, g.reason[:300]) for g in shown[:GRAPHS_SHOWN]],
            files=sum(digest != ABSENT for digest in self._expected.values()),
            captures=self.captures,
            capture_s=self.capture_s,
            ready_s=self.ready_s,
            fake=good.fake if good else False,
            packages=good.packages if good else 0,
        )


def shortened(status: wire.WatchStatus) -> wire.WatchStatus:
    """Shorten a status: leave out its graphs, and shorten its texts."""
    texts = {name: getattr(status, name)[:SHORT_CHARS] for name in ("name", "error", "note", "edited")}
    return msgspec.structs.replace(status, graphs=[], **texts)


def store_names(artifacts: Path) -> Callable[[str], set[str]]:
    """A function that lists a key's file names in ``artifacts``. The function reads the directory once, at its first
    call.
    """
    names: Mapping[str, object] | None = None

    def of(key: str) -> set[str]:
        nonlocal names
        if names is None:
            try:
                names = dict.fromkeys(os.listdir(artifacts))
            except OSError:
                names = {}
        return {name for name in names if name.startswith(f"{key}.")}

    return of
