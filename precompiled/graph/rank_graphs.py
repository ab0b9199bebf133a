"""Derives other ranks' captured graphs from one rank's graph (torch_internals/ranks/rank_dependence.py).

The graphs of ranks that use the same device meshes differ only in the rank's coordinates in the meshes. This file needs
no torch.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from precompiled.graph.key import SECTIONS, key

if TYPE_CHECKING:
    from precompiled.core.program_data import InputsData, ProgramData


def of_others(program_bytes: bytes, own: str) -> dict[str, bytes]:
    """Return the programs (captured graphs) of the other ranks of the same meshes: a dict from key to bytes.

    Covers ranks that are in all of the meshes. Empty if the shards have different sizes. ``own``: the key of
    ``program_bytes``.
    """
    program: ProgramData = json.loads(program_bytes)
    if _key_of(program) != own or not _even(program["inputs"]):
        return {}
    found = {}
    for label in _labels(program):
        made = _moved(program, label)
        if (name := _key_of(made)) != own:
            found[name] = _dump(made).encode()
    return found


def family(program_bytes: bytes) -> str:
    """Return a key that is equal for all ranks of the same meshes; "" if no other rank is in all of these meshes."""
    if b'"meshes":' not in program_bytes:
        return ""
    program: ProgramData = json.loads(program_bytes)
    labels = _labels(program)
    return _key_of(_moved(program, labels[0])) if len(labels) > 1 else ""


def _even(inputs: InputsData) -> bool:
    """Whether all ranks have shards of the same size, for each input."""
    for item in inputs["args"]:
        if "placements" not in item.get("context", ()):
            continue
        sizes = list(item["shape"])
        number = next(held["mesh"] for _, held in item["inner"] if "mesh" in held)
        for ranks, (name, *given) in zip(inputs["meshes"][number]["shape"], item["context"]["placements"], strict=True):
            if name in ("Shard", "_StridedShard") and type(size := sizes[given[0]]) is int:
                if size % ranks:
                    return False
                sizes[given[0]] = size // ranks
    return True


def _labels(program: ProgramData) -> list[int]:
    """The ranks that are in all meshes."""
    meshes = program["inputs"].get("meshes", ())
    return [rank for rank in (meshes[0]["ranks"] if meshes else ()) if all(rank in mesh["ranks"] for mesh in meshes)]


def _moved(program: ProgramData, label: int) -> ProgramData:
    inputs = program["inputs"]
    return {**program, "inputs": {**inputs, "meshes": [{**mesh, "rank": label} for mesh in inputs["meshes"]]}}


def _key_of(program: ProgramData) -> str:
    return key({name: _dump(program[name]) for name in SECTIONS})


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))  # as capture.py writes it
