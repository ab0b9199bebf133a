"""Reads and prints the program of an artifact or failure record, for `cache show` and `explain`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from precompiled.core.errors import CorruptArtifact
from precompiled.core.json_text import parse_json
from precompiled.core.names import shorten_paths
from precompiled.core.words import format_count
from precompiled.graph import listing
from precompiled.graph.key import SECTIONS
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact, Store

if TYPE_CHECKING:
    from precompiled.core.program_data import ProgramData

MAX_SHOWN_CHARS = 400
MAX_INPUTS = 5  # inputs that a shortened list of operations begins with


def program_of(store: Store, kept: Artifact | fmt.Failure) -> ProgramData | None:
    """The program of an artifact or a failure record; None if it was not kept or cannot be read."""
    try:
        data = store.read_program(kept) if isinstance(kept, Artifact) else fmt.program_of_failure(kept)
    except (CorruptArtifact, FileNotFoundError, ValueError):
        return None  # quarantined, evicted or damaged
    return None if data is None else read_program(data)


def read_program(data: bytes) -> ProgramData | None:
    """Decode a program; None if the data is not a program, as in some failure records."""
    try:
        program: ProgramData = parse_json(data)
    except ValueError:
        return None
    return program if isinstance(program, dict) and set(SECTIONS) <= set(program) else None


def first_program(store: Store, artifacts: Sequence[Artifact], failure: fmt.Failure | None) -> ProgramData | None:
    """The first readable program of a key. A key's artifacts and failure record have the same program, except for
    sizes.
    """
    found = (program_of(store, kept) for kept in (*artifacts, failure) if kept is not None)
    return next((program for program in found if program is not None), None)


def operations(program: ProgramData | None) -> list[listing.Operation] | None:
    """The operations of a program; None if there is no readable program."""
    if program is None:
        return None
    try:
        return listing.operations(program)
    except listing.NOT_A_PROGRAM:
        return None


def document(found: list[listing.Operation] | None) -> list[dict[str, Any]] | None:
    if found is None:
        return None
    return [
        {
            "graph": item.graph,
            "node": item.node,
            "text": item.text,
            "source": vars(item.place) if item.place else None,
        }
        for item in found
    ]


def show(found: list[listing.Operation] | None, most: int | None) -> None:
    """Print operations below their source lines. ``most``: the limit of operations, or None. If the graph has more
    operations, the inputs come first.
    """
    click.echo("\ngraph")
    if found is None:
        click.echo("  not kept, or not readable")
        return
    graph, place = 0, None
    inputs = [item for item in found if item.is_input and item.graph == 0]
    others = [item for item in found if not (item.is_input and item.graph == 0)]
    if most is None or len(found) <= most:
        inputs, others = [], found
    for item in inputs[:MAX_INPUTS]:
        click.echo(f"  {item.text}")
    if len(inputs) > MAX_INPUTS:
        click.echo(f"  and {format_count(len(inputs) - MAX_INPUTS, 'more input')}")
    for item in others[:most]:
        if item.graph != graph:
            graph, place = item.graph, None
            click.echo(f"\ngraph {graph}")
        if item.place is not None and item.place != place:
            click.echo(f"  # {shorten_paths(str(item.place))}")
        place = item.place
        text = item.text if len(item.text) <= MAX_SHOWN_CHARS else item.text[:MAX_SHOWN_CHARS] + "..."
        click.echo(f"  {text}")
    if most is not None and len(others) > most:
        click.echo(f"  and {format_count(len(others) - most, 'more operation')}")
