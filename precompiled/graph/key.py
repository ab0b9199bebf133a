"""Computes the key of a captured graph (*program*), and its components.

The key is the SHA-256 of the format versions and the program's sections. A compile depends on nothing else, except the
values of symbolic sizes. So equal keys mean equal compiles. An artifact's manifest stores the components, so
cli/nearest.py finds the graph nearest to a miss without reading every graph.

The command line uses this file, so the file imports no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from precompiled.store.artifact_format import FORMAT

if TYPE_CHECKING:
    from precompiled.core.program_data import Section

# The sections that a key hashes, in this order. capture.py describes their content.
SECTIONS: tuple[Section, ...] = ("graph", "inputs", "modes", "configs", "environment")

# Raise this number if a program's bytes change in meaning, or if a worker compiles them differently.
SCHEMA = 3
# A manifest has these sections as text, if the text is not longer than this (in characters). The manifest has digests
# of all other sections.
_READABLE = ("inputs", "modes", "environment")
_MAX_READABLE = 64_000


def key(sections: Mapping[str, str]) -> str:
    """The key: 64 hexadecimal digits. ``sections`` are those of a capture.SerializedGraph."""
    state = hashlib.sha256(f"precompiled schema {SCHEMA} format {FORMAT}\n".encode())
    for name in SECTIONS:
        text = sections[name].encode()
        # The length separates a section from the next.
        state.update(f"{name} {len(text)}\n".encode())
        state.update(text)
    return state.hexdigest()


def components(program_bytes: bytes) -> dict[str, str]:
    """The key's components by section: short sections as text, others as digests."""
    return components_of(json.loads(program_bytes))


def components_of(program: Mapping[str, object]) -> dict[str, str]:
    """The components of a decoded program."""
    described: dict[str, str] = {}
    for name in SECTIONS:
        text = json.dumps(program[name], separators=(",", ":"))
        if name in _READABLE and len(text) <= _MAX_READABLE:
            described[name] = text
        else:
            described[name] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return described
