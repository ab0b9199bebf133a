"""The key of a program, and its components.

The key is the SHA-256 over the format versions and the program's bytes, section by section. Everything that the worker
sees is in those bytes, so equal keys mean equal compiles. The components are kept in the artifact's manifest, so that
the nearest graph to a miss is found without reading every graph (cli/explain.py).

No torch here: the command line reads programs too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from precompiled.store.artifact_format import FORMAT

# What a key is made of, in this order (capture.py says what each holds).
SECTIONS = ("graph", "inputs", "modes", "configs", "environment")

# Raise it when the meaning of a program's bytes changes, or when a worker compiles them to something else.
SCHEMA = 3
# Sections that people can read are kept as text up to this size, the others as a digest.
_READABLE = ("inputs", "modes", "environment")
_MAX_READABLE = 64_000


def key(sections: Mapping[str, str]) -> str:
    """64 hexadecimal digits; ``sections``: of a capture.Program."""
    state = hashlib.sha256(f"precompiled schema {SCHEMA} format {FORMAT}\n".encode())
    for name in SECTIONS:
        text = sections[name].encode()
        # With lengths, so that the content of one section cannot be taken for the start of the next.
        state.update(f"{name} {len(text)}\n".encode())
        state.update(text)
    return state.hexdigest()


def components(program_bytes: bytes) -> dict[str, str]:
    """The parts of the key, by section: text where people can read it, else a digest."""
    return components_of(json.loads(program_bytes))


def components_of(program: dict[str, Any]) -> dict[str, str]:
    """The components of a program that is decoded already."""
    described = {}
    for name in SECTIONS:
        text = json.dumps(program[name], separators=(",", ":"))
        if name in _READABLE and len(text) <= _MAX_READABLE:
            described[name] = text
        else:
            described[name] = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    return described
