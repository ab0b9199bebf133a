"""explain: why a graph was a miss, by what differs from the nearest graph that was there; and what a reason means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from precompiled.cli import functions, runs
from precompiled.cli.app import command
from precompiled.cli.graph import operations, program_of
from precompiled.cli.output import SHOWN_DIGITS, Output, human_age, pairs
from precompiled.cli.store import open_store, resolve
from precompiled.core.config import Settings
from precompiled.core.errors import StoreError
from precompiled.core.reasons import REASONS, Reason, plain
from precompiled.graph import difference, key, listing
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact, Store

# Programs are read of so many graphs, those with the most components in common: a store may hold ten thousand.
MAX_COMPARED = 64
MAX_SHOWN = 20
TITLES = {
    "graph": "the graph",
    "inputs": "the inputs",
    "modes": "the modes",
    "configs": "the configuration (torch._inductor.config, torch._functorch.config, mode= and options=)",
    "environment": "the environment",
}


@dataclass(frozen=True)
class _Kept:
    """An artifact or a failure record in the store."""

    key: str
    slot: int
    name: str
    device: str
    created: float
    state: str
    components: dict[str, str]
    store: str
    is_own: bool
    stored: Artifact | fmt.Failure

    def program(self, store: Store) -> dict[str, Any] | None:
        try:
            return program_of(store, self.stored)
        except StoreError:
            return None  # it cannot be trusted, so it is not compared with

    def equal(self, other: _Kept) -> list[str]:
        return [name for name in key.SECTIONS if name in self.components
                and self.components[name] == other.components.get(name)]  # fmt: skip

    def document(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("key", "slot", "name", "device", "created", "state", "store")}

    def __str__(self) -> str:
        where = "" if self.is_own else f" in {self.store}"
        what = f"artifact {self.slot}{where}" if self.state == "artifact" else "which failed to compile"
        return f"{self.key[:SHOWN_DIGITS]} {self.name or '-'}, {what}, {human_age(self.created)} old"


@dataclass(frozen=True)
class _Nearest:
    """The nearest graph that was there before, and what differs."""

    kept: _Kept
    distance: tuple[int, int]
    changes: list[difference.Change]


@command("explain")
@click.argument("prefix", required=False, metavar="[KEY|FUNCTION|CODE]")
@click.option("--last", is_flag=True, help="The graph that was published last.")
@click.option("--run", metavar="NAME", help="What became of all graphs of a run, of each rank; `last` is the last one.")
def explain_command(out: Output, settings: Settings, prefix: str | None, last: bool, run: str | None) -> None:
    """Say why a graph was not found in the store: what differs from the nearest graph that was there before it.

    A unique beginning of KEY is enough. Of a function's name (`model.Net.forward`): why it was traced although it has a
    package, with the guard and the line in its source. Of a reason's CODE (`no-daemon`): what it means, and what can
    be done.
    """
    if [prefix is not None, last, run is not None].count(True) != 1:
        raise click.UsageError("give either a KEY (or a function, or a reason's code), or --last, or --run NAME")
    if run is not None:
        out.result(*runs.explain(settings, run))
        return
    if prefix in REASONS:  # no code is the beginning of a key: none is a hexadecimal number
        reason = REASONS[prefix]
        out.result(_reason_document(reason), lambda: _show_reason(reason))
        return
    store = open_store(settings)
    if prefix is not None and functions.is_function(prefix):
        about = functions.explain_document(store, prefix)
        out.result(about, lambda: functions.explain(about))
        return
    all_kept = sorted([*_artifacts(store), *_failures(store)], key=lambda item: item.created)
    if prefix is None:
        if not all_kept:
            raise StoreError(
                f"there is nothing in {store.root}", "Run a program under `precompiled run` first", code="no-such-key"
            )
        whole = all_kept[-1].key
    else:
        whole = resolve(store, [prefix])[0]
    mine = [item for item in all_kept if item.key == whole]
    if not mine:
        raise StoreError(
            f"{whole[:SHOWN_DIGITS]} has nothing that can be read", "`precompiled doctor` says more", code="unreadable"
        )
    program = next((found for item in mine if (found := item.program(store)) is not None), None)
    if program is None or operations(program) is None:
        raise StoreError(
            f"{whole[:SHOWN_DIGITS]} was kept without its graph, so it cannot be compared with others",
            "`precompiled show` has the rest",
            code="graph-not-kept",
        )
    first = mine[0]
    nearest = _nearest(store, first, program, [item for item in all_kept if item.created < first.created])
    variants = list(_variants(store, mine))
    equal = [name for name in key.SECTIONS if name not in {change.section for change in nearest.changes}] \
        if nearest else []  # fmt: skip
    document = {
        **mine[-1].document(),
        "nearest": nearest.kept.document() if nearest else None,
        "equal": equal,
        "changes": [asdict(change) for change in nearest.changes] if nearest else [],
        "variants": variants,
    }
    out.result(document, lambda: _show(mine, nearest, equal, variants))


# ---------------------------------------------------------------- a reason's code


def _reason_document(reason: Reason) -> dict[str, Any]:
    return {
        "code": reason.code,
        "kind": reason.kind.name.lower().replace("_", "-"),
        "meaning": reason.meaning,
        "outcome": reason.outcome.value if reason.outcome else None,
        "follows": reason.follows,
        "advice": reason.advice,
    }


def _show_reason(reason: Reason) -> None:
    click.echo(f"{reason.code}: {plain(reason.meaning)}\n\n{plain(reason.kind.value)}")
    said = [("what follows", plain(reason.follows)), ("what you can do", reason.plain_advice)]
    pairs([(f"  {name}", text) for name, text in said if text])


# ---------------------------------------------------------------- what is there


def _artifacts(store: Store) -> Iterator[_Kept]:
    for artifact in store.all_artifacts():
        found, slot = artifact.manifest, artifact.slot
        yield _Kept(
            found.key, slot, found.name, found.device, found.created, "artifact", found.components, str(artifact.root),
            store.is_own(artifact), artifact,
        )  # fmt: skip


def _failures(store: Store) -> Iterator[_Kept]:
    for failure in store.failures():
        device, components = "", {}
        program = program_of(store, failure)
        if program is not None:
            components = key.components_of(program)
            # A record does not name the device; its environment has a GPU's facts or none.
            device = "cuda" if "gpu" in (program["environment"] or ()) else "cpu"
        yield _Kept(
            failure.key, 0, failure.name, device, failure.created, "failed", components, str(store.root), True, failure
        )


def _nearest(store: Store, target: _Kept, program: dict[str, Any], older: Sequence[_Kept]) -> _Nearest | None:
    """The graph with the fewest components that differ, then the fewest fields in them; None where none is alike."""
    candidates = {
        item.key: item for item in older  # one of each key: variants differ in sizes only
        if item.key != target.key and item.device == target.device and item.equal(target)
    }  # fmt: skip
    ranked = sorted(
        candidates.values(),
        # Graphs of the same function before others, then the youngest: only the first are compared.
        key=lambda item: (-len(item.equal(target)), _function(item) != _function(target), -item.created),
    )
    found: _Nearest | None = None
    for item in ranked[:MAX_COMPARED]:
        if found is not None and len(item.equal(target)) < len(found.kept.equal(target)):
            break
        other = item.program(store)
        if other is None:
            continue
        try:
            distance = difference.distance(other, program)
            if found is None or distance < found.distance:
                found = _Nearest(item, distance, difference.compare(other, program))
        except listing.NOT_A_PROGRAM:
            continue  # a failure record whose program is none
    return found


def _function(item: _Kept) -> str:
    """The name without Dynamo's numbers: of ``forward [0/1]``, ``forward``."""
    return item.name.partition(" [")[0]


# ---------------------------------------------------------------- variants


def _variants(store: Store, mine: Sequence[_Kept]) -> Iterator[dict[str, Any]]:
    """The artifacts of a key, oldest first: for which sizes each was compiled, and where it holds."""
    for item in mine:
        if isinstance(item.stored, Artifact):
            program = item.program(store)
            yield {
                "slot": item.slot,
                "created": item.created,
                "sizes": {} if program is None else _sizes(program),
                "guards": _readable(item.stored.manifest.guards, program),
            }


def _sizes(program: dict[str, Any]) -> dict[str, int]:
    return {f"s{number}": hint for number, hint in enumerate(program.get("hints", []))}


def _readable(guards: str, program: dict[str, Any] | None) -> str:
    """Guards with the names of the sizes in place of the graph's size inputs (``L['t0']``)."""
    if program is None:
        return guards
    try:
        sizes = [listing.size(item["size"]) for item in program["inputs"]["args"] if isinstance(item.get("size"), dict)]
        return re.sub(r"L\[['\"]t(\d+)['\"]\]", lambda match: sizes[int(match.group(1))], guards)
    except listing.NOT_A_PROGRAM:
        return guards


# ---------------------------------------------------------------- shown


def _show(
    mine: Sequence[_Kept], nearest: _Nearest | None, equal: Sequence[str], variants: Sequence[dict[str, Any]]
) -> None:
    click.echo(str(mine[-1]))
    if mine[-1].state == "failed":
        click.echo("Why it failed: `precompiled show` has the message.")
    for number, variant in enumerate(variants):
        if number:
            _show_variant(variant, variants[:number])
    click.echo()
    if len(mine) > 1:
        click.echo("Why the key itself was new:")
    if nearest is None:
        click.echo("The store had nothing alike when it was compiled.")
        return
    click.echo(f"nearest: {nearest.kept}")
    if equal:
        click.echo(f"the same: {', '.join(equal)}")
    for section in key.SECTIONS:
        changes = [change for change in nearest.changes if change.section == section]
        if changes:
            click.echo(f"\n{TITLES[section]}")
        for change in changes[:MAX_SHOWN]:
            click.echo(f"  {change}")
            if change.source:
                click.echo(f"    {change.source}")
        if len(changes) > MAX_SHOWN:
            click.echo(f"  and {len(changes) - MAX_SHOWN} more: --json has them all")


def _show_variant(variant: dict[str, Any], earlier: Sequence[dict[str, Any]]) -> None:
    sizes = ", ".join(f"{name} = {size}" for name, size in variant["sizes"].items())
    click.echo(f"\nartifact {variant['slot']}: no variant's guards accepted the sizes {sizes or '(not kept)'}")
    for other in earlier:
        click.echo(f"  artifact {other['slot']} holds where {other['guards'] or 'nothing is asked'}")
