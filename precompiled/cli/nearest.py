"""Explains a miss: finds the nearest graph that was in the store earlier, and lists the differences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from precompiled.cli import setters, trace_differences
from precompiled.cli.graph import operations, program_of, read_program
from precompiled.cli.outcomes import BAD_CODE
from precompiled.cli.output import SHOWN_DIGITS, human_age
from precompiled.core.errors import SLOWER_THAN_EAGER, StoreError
from precompiled.core.names import in_words
from precompiled.graph import causes, difference, key, listing
from precompiled.graph.advice import Cause
from precompiled.store import artifact_format as fmt
from precompiled.store import run_records
from precompiled.store.artifacts import Artifact, Store

if TYPE_CHECKING:
    from precompiled.core.program_data import ProgramData

# The number of programs that are read in full: those with the most components in common with the graph. A store may
# hold 10,000 graphs.
MAX_COMPARED = 64
# The states of missed graphs that only a run record has: no daemon got the graph, or its compile has not ended.
NOT_SENT, PENDING = "not sent", "pending"


@dataclass(frozen=True)
class Candidate:
    """An artifact or a failure record in the store, or the program of a missed graph in a run record."""

    key: str
    slot: int
    name: str
    device: str
    created: float
    state: str
    components: dict[str, str]
    store: str
    is_own: bool
    stored: Artifact | fmt.Failure | str  # str: the name of the run that has the program

    def equal(self, other: Candidate) -> list[str]:
        return [
            name
            for name in key.SECTIONS
            if name in self.components and self.components[name] == other.components.get(name)
        ]

    @property
    def is_only_in_run(self) -> bool:
        """Whether the store has neither an artifact nor a failure record of the graph."""
        return isinstance(self.stored, str)

    @property
    def bad_code(self) -> str:
        """Why the graph's compiled code is refused, although its compile succeeded; "" for all other candidates."""
        return BAD_CODE.get(self.stored.reason, "") if isinstance(self.stored, fmt.Failure) else ""

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("key", "slot", "name", "device", "created", "state", "store")}

    def __str__(self) -> str:
        where = "" if self.is_own else f" in {self.store}"
        others = {
            "failed": "which failed to compile",
            NOT_SENT: "which was a miss and was not sent to a daemon",
            PENDING: "which is not compiled yet",
        }
        what = others.get(self.state, f"artifact {self.slot}{where}")
        if self.bad_code:
            what = f"not served because {self.bad_code}"
        return f"{self.key[:SHOWN_DIGITS]} {self.name or '-'}, {what}, {human_age(self.created)} old"


@dataclass(frozen=True)
class Nearest:
    """The earlier graph that is nearest to the explained graph, and the differences between both."""

    kept: Candidate
    program: ProgramData
    distance: tuple[int, ...]
    changes: list[difference.Change]


@dataclass(frozen=True)
class Explained:
    """A missed graph. ``mine``: everything kept for its key, oldest first."""

    mine: list[Candidate]
    program: ProgramData
    nearest: Nearest | None
    causes: list[Cause]
    variants: list[dict[str, Any]]

    @property
    def equal(self) -> list[str]:
        """The sections that are equal in this graph and in the nearest one."""
        if self.nearest is None:
            return []
        return [name for name in key.SECTIONS if name not in {change.section for change in self.nearest.changes}]


def is_published(kept: Sequence[Candidate]) -> bool:
    """Whether the store has an artifact of a graph. ``kept``: everything of its key."""
    return any(isinstance(item.stored, Artifact) for item in kept)


def deciding_failure(kept: Sequence[Candidate]) -> fmt.Failure | None:
    """The failure record that later runs find. None if there is none, or if they use an artifact of the graph.

    ``kept``: everything of a key.
    """
    failures = (item.stored for item in kept if isinstance(item.stored, fmt.Failure))
    return next((found for found in failures if found.reason == SLOWER_THAN_EAGER or not is_published(kept)), None)


class Kepts:
    """Everything that a store and its bases keep. Reads each program at most once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._programs: dict[tuple[str, int], ProgramData | None] = {}

    @cached_property
    def all(self) -> list[Candidate]:
        """Everything, oldest first."""
        found = [*_artifacts(self._store), *_failures(self._store)]
        known = {item.key for item in found}
        for item in _of_runs(self._store):
            if item.key not in known:
                found.append(self._with_components(item) if item.state == PENDING else item)
        return sorted(found, key=lambda item: item.created)

    def of(self, whole: str) -> list[Candidate]:
        return [item for item in self.all if item.key == whole]

    def explain(
        self, whole: str, files: Sequence[str] = (), may_compare: Callable[[Candidate], bool] = lambda item: True
    ) -> Explained:
        """Explain why a key was new. Raises StoreError.

        - ``files``: further source files of the program
        - ``may_compare``: whether an older graph may be the nearest one
        """
        mine = self.of(whole)
        if not mine:
            said = f"no file of {whole[:SHOWN_DIGITS]} can be read"
            raise StoreError(said, "Run `precompiled doctor`", code="unreadable")
        program = next((found for item in mine if (found := self.program(item)) is not None), None)
        if program is None or operations(program) is None:
            raise StoreError(
                f"the store has no copy of the graph {whole[:SHOWN_DIGITS]}, so it cannot be compared with others",
                "`precompiled cache show` shows the rest",
                code="graph-not-kept",
            )
        if mine[0].state == NOT_SENT:
            mine = [self._with_components(mine[0])]
        older = [item for item in self.all if item.created < mine[0].created and may_compare(item)]
        nearest = self._nearest(mine[0], program, older)
        located = [_located(program, cause, files) for cause in self._causes(mine[0], program, nearest)]
        return Explained(mine, program, nearest, located, list(self._variants(mine)))

    def _with_components(self, item: Candidate) -> Candidate:
        """Add what the manifest of an artifact would say."""
        program = self.program(item)
        if program is None:
            return item
        return replace(item, components=key.components_of(program), device=_device(program))

    def program(self, item: Candidate) -> ProgramData | None:
        name = item.key, item.slot
        if name not in self._programs:
            try:
                if isinstance(item.stored, str):
                    self._programs[name] = read_program(
                        run_records.read_program(self._store.root, item.stored, item.key)
                    )
                else:
                    self._programs[name] = program_of(self._store, item.stored)
            except (StoreError, OSError):
                self._programs[name] = None  # unreadable or untrusted, so it is not compared
        return self._programs[name]

    def _nearest(self, target: Candidate, program: ProgramData, older: Sequence[Candidate]) -> Nearest | None:
        """The nearest of the ``older`` graphs; None if none has a component in common with the target.

        Earlier versions of the target (causes.py) are nearer than all other graphs. Of several versions, the one with
        the fewest different components and fields is the nearest.
        """
        candidates = {
            item.key: item
            for item in older  # one per key: variants differ only in sizes
            if item.state != NOT_SENT and item.key != target.key and item.device == target.device and item.equal(target)
        }
        ranked = sorted(
            candidates.values(),
            # Graphs with the most equal components come first, then graphs of the target's function, then the youngest.
            # Only the first MAX_COMPARED graphs are compared.
            key=lambda item: (-len(item.equal(target)), _function(item) != _function(target), -item.created),
        )
        found: Nearest | None = None
        for item in ranked[:MAX_COMPARED]:
            is_fewer = found is not None and len(item.equal(target)) < len(found.kept.equal(target))
            if found is not None and is_fewer and not found.distance[0]:
                break  # it is a version of the target
            other = self.program(item)
            if other is None:
                continue
            try:
                # Prefer graphs of the target's source file.
                is_other = causes.are_of_other_files(program, other)
                if is_fewer and is_other:
                    continue
                # At equal distance, prefer a graph of the target's frame.
                near = (*difference.distance(other, program), int(_frame(item) != _frame(target)))
                is_version = causes.is_version_of(target.name, program, item.name, other)
                distance = (int(not is_version), int(is_other), *near)
                if found is None or distance < found.distance:
                    found = Nearest(item, other, distance, difference.compare(other, program))
            except listing.NOT_A_PROGRAM:
                continue  # a failure record with an invalid program
        return found

    def _causes(self, target: Candidate, program: ProgramData, nearest: Nearest | None) -> list[Cause]:
        try:
            if nearest is None or not causes.is_version_of(target.name, program, nearest.kept.name, nearest.program):
                return [causes.new(program, nearest.program if nearest is not None else None)]
            found = causes.causes(nearest.program, program, nearest.changes)
            if not any(map(causes.may_follow_from_a_value, found)):
                return found
            value = trace_differences.first_value(self._store, target.key, nearest.kept.key)
            if value is None:
                return found
            before, after = value.difference.before, value.difference.here
            return causes.by_guard(found, in_words(value.where), before, after, value.place)
        except listing.NOT_A_PROGRAM:  # only a part of the program can be compared
            return []

    def _variants(self, mine: Sequence[Candidate]) -> Iterator[dict[str, object]]:
        """The artifacts of a key, oldest first, each with its guards and the sizes of its compile."""
        for item in mine:
            if isinstance(item.stored, Artifact):
                program = self.program(item)
                yield {
                    "slot": item.slot,
                    "created": item.created,
                    "sizes": {} if program is None else _sizes(program),
                    "guards": _readable(item.stored.manifest.guards, program),
                }


def _artifacts(store: Store) -> Iterator[Candidate]:
    for artifact in store.all_artifacts():
        found, slot = artifact.manifest, artifact.slot
        yield Candidate(
            found.key,
            slot,
            found.name,
            found.device,
            found.created,
            "artifact",
            found.components,
            str(artifact.root),
            store.is_own(artifact),
            artifact,
        )


def _failures(store: Store) -> Iterator[Candidate]:
    for failure in store.failures():
        device, components = "", {}
        program = program_of(store, failure)
        if program is not None:
            components = key.components_of(program)
            device = _device(program)
        yield Candidate(
            failure.key, 0, failure.name, device, failure.created, "failed", components, str(store.root), True, failure
        )


def _of_runs(store: Store) -> Iterator[Candidate]:
    kept = run_records.programs(store.root)
    known = run_records.runs(store.root) if kept else []
    graphs = {graph.get("key"): graph for run in reversed(known) for graph in run.graphs}
    for whole, (created, run) in kept.items():
        graph = graphs.get(whole, {})
        state = PENDING if run_records.way(graph) == "pending" else NOT_SENT
        yield Candidate(whole, 0, graph.get("name", ""), "", created, state, {}, str(store.root), True, run)


def _device(program: ProgramData) -> str:
    """A program's device: "cuda" if the program's environment describes a GPU, else "cpu"."""
    return "cuda" if "gpu" in (program["environment"] or ()) else "cpu"


def _function(item: Candidate) -> str:
    """The name without Dynamo's numbers: ``forward`` for ``forward [0/1]``."""
    return item.name.partition(" [")[0]


def _frame(item: Candidate) -> str:
    """Return the name without the trace's number: ``forward [0`` for ``forward [0/1]``."""
    return item.name.partition("/")[0]


def _located(program: ProgramData, cause: Cause, files: Sequence[str]) -> Cause:
    """The cause, with the source line that set the changed value, if such a line is found."""
    found = setters.lines(program, cause, files)
    return replace(cause, line=f"set at {' or '.join(map(str, found))}") if found else cause


# ---------------------------------------------------------------- variants


def _sizes(program: ProgramData) -> dict[str, int]:
    return {f"s{number}": hint for number, hint in enumerate(program.get("hints", []))}


def named_sizes(program: ProgramData, sizes: dict[str, int]) -> str:
    """Sizes as text: ``x, dimension 0 = 40`` if the program's name of a size is known, otherwise ``s0 = 40``."""
    try:
        names = listing.symbols(program)
    except listing.NOT_A_PROGRAM:
        names = {}
    return "; ".join(f"{names.get(name, name)} = {size}" for name, size in sizes.items())


def _readable(guards: str, program: ProgramData | None) -> str:
    """The guards with the program's names of sizes, which replace the graph's size inputs, such as ``L['t0']``."""
    if program is None:
        return guards
    try:
        sizes = [listing.size(item["size"]) for item in program["inputs"]["args"] if isinstance(item.get("size"), dict)]
        return re.sub(r"L\[['\"]t(\d+)['\"]\]", lambda match: sizes[int(match.group(1))], guards)
    except listing.NOT_A_PROGRAM:
        return guards
