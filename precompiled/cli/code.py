"""Reads the code that Inductor generated from an artifact, without running it, for `cache show --code`."""

from __future__ import annotations

import pickletools
from collections.abc import Iterator

import click

from precompiled.core.errors import CorruptArtifact
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact, Store

# The first line of Inductor's code (torch/_inductor/codegen/wrapper.py) names its graph: "# AOT ID: ['0_forward']".
# Checked on 2.11.0, 2.13.0, 2.15.0.
_BEGINS = "# AOT ID: "


def of_artifact(store: Store, artifact: Artifact) -> list[str]:
    """The code in an artifact's verified bundle, forward first. Empty if the bundle has no code, or if the artifact was
    evicted or is corrupt.
    """
    try:
        return extract_generated_code(store.read_some(artifact, [fmt.BUNDLE])[fmt.BUNDLE])
    except (FileNotFoundError, CorruptArtifact, ValueError):
        return []


def show(slot: int, texts: list[str]) -> None:
    for text in texts:
        click.echo(f"\ncode of artifact {slot}\n\n{text.rstrip()}")
    if not texts:
        click.echo(f"\nartifact {slot} has no readable code of Inductor")


def extract_generated_code(bundle: bytes) -> list[str]:
    """The texts of Inductor's code in a pickle, forward first.

    Reads the pickle's opcodes instead of loading it, because a load runs code. Raises ValueError for an invalid pickle.
    """
    return list(dict.fromkeys(_texts(bundle)))


def _texts(bundle: bytes) -> Iterator[str]:
    for _opcode, argument, _position in pickletools.genops(bundle):
        if isinstance(argument, str) and argument.startswith(_BEGINS):
            yield argument
