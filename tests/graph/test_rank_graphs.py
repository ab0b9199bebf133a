"""Tests that a rank's program is turned into the programs of the other ranks in the same meshes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support_programs import ARGS, PROGRAM, TENSOR, changed, put

from precompiled.graph import rank_graphs
from precompiled.graph.key import SECTIONS, key

MESH = {"device": "cpu", "shape": [2], "names": ["tp"], "ranks": [0, 1], "rank": 0, "groups": ["precompiled-group-0"]}


def program(*meshes: dict[str, Any], sharded: int = 16) -> bytes:
    dtensor = {
        "subclass": ["torch.distributed.tensor", "DTensor", ""],
        "shape": [sharded, 4],
        "inner": [["_local_tensor", TENSOR], ["device_mesh", {"mesh": 0}]],
        "context": {"placements": [["Shard", 0]] + [["Replicate"]] * (len(meshes[0]["shape"]) - 1)},
    }
    made = changed(put(*ARGS, 1, dtensor))
    made["inputs"]["meshes"] = list(meshes)
    return json.dumps(made, separators=(",", ":")).encode()


def key_of(data: bytes) -> str:
    parsed = json.loads(data)
    return key({name: json.dumps(parsed[name], separators=(",", ":")) for name in SECTIONS})


def test_each_rank_finds_the_programs_of_the_others() -> None:
    first, second = program(MESH), program({**MESH, "rank": 1})
    assert rank_graphs.of_others(first, key_of(first)) == {key_of(second): second}
    assert rank_graphs.of_others(second, key_of(second)) == {key_of(first): first}
    assert rank_graphs.family(first) == rank_graphs.family(second) == key_of(first)


@pytest.mark.parametrize(
    "data",
    [program(MESH, sharded=15), program({**MESH, "shape": [1], "ranks": [0]}), json.dumps(PROGRAM).encode()],
    ids=["uneven", "one rank", "no mesh"],
)
def test_uneven_or_single_rank_programs_have_no_other_places(data: bytes) -> None:
    if b"meshes" in data:
        assert rank_graphs.of_others(data, key_of(data)) == {}
    else:
        assert rank_graphs.family(data) == ""


def test_program_that_does_not_match_its_key_has_no_other_places() -> None:
    data = program(MESH)
    assert rank_graphs.of_others(data, "another key") == {}


def test_only_ranks_with_the_same_meshes_are_found() -> None:
    """Four ranks form two pairs. From the program of rank 0, only the program of rank 0's partner can be derived."""
    whole = {**MESH, "shape": [2, 2], "ranks": [0, 1, 2, 3], "names": ["dp", "tp"]}
    found = rank_graphs.of_others(data := program(whole, MESH), key_of(data))
    ranks = [[mesh["rank"] for mesh in json.loads(other)["inputs"]["meshes"]] for other in found.values()]
    assert ranks == [[1, 1]]
