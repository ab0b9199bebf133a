"""Tests the keys under which a worker publishes the artifact of a graph with DTensors.

If the compile does not read the rank's place in the mesh, the worker publishes the artifact under the keys of all
places. Otherwise it publishes the artifact under the key of one place.

tests/e2e/test_ranks.py tests two ranks over gloo with real workers. None of these graphs has a C++ kernel.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support_graphs import captures
from support_host import prepare
from torch._inductor import codecache

from precompiled import compiler, wire
from precompiled.graph import key
from precompiled.store import rank_turns, scratch
from precompiled.store.artifacts import Store
from precompiled.torch_internals import version_tuple

dist = torch.distributed
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402

pytestmark = pytest.mark.skipif(version_tuple(torch.__version__) < (2, 13), reason="DTensors are refused on this torch")


def in_shards(x: DTensor, w: DTensor) -> torch.Tensor:
    return (x @ w).to_local()


def gathered(x: DTensor, w: DTensor) -> torch.Tensor:
    return (x.redistribute(placements=[Replicate()]) @ w).to_local()


def cut_out(x: DTensor, w: DTensor) -> torch.Tensor:
    return (x.redistribute(placements=[Replicate()]).redistribute(placements=[Shard(0)]) @ w).to_local()


def programs(function: Callable[..., Any]) -> list[bytes]:
    """Returns the serialized graphs of two ranks that have half of the rows each."""
    mesh = init_device_mesh("cpu", (1,))
    x, w = (distribute_tensor(torch.randn(4, 4), mesh, [placement]) for placement in (Shard(0), Replicate()))
    ((found,), made) = captures(function, x, w), []
    for rank in range(2):
        program = json.loads(found.program.to_bytes())
        program["inputs"]["args"][0]["shape"] = [8, 4]
        program["inputs"]["meshes"][0].update(shape=[2], ranks=[0, 1], rank=rank)
        program["modes"]["groups"] = dict.fromkeys(program["modes"]["groups"], 2)
        made.append(json.dumps(program, separators=(",", ":")).encode())
    return made


@pytest.mark.parametrize(
    ("function", "rank", "published"),
    [(in_shards, 0, [0, 1]), (gathered, 1, [0, 1]), (cut_out, 0, [0]), (cut_out, 1, [1])],
)
def test_artifact_is_published_for_all_places_or_only_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_rank: None, function: Any, rank: int, published: list[int]
) -> None:
    for name in ("_HEADER_DIR", "_HEADER_LOCK_DIR"):  # a job sets the header directories for good
        monkeypatch.setattr(codecache, name, getattr(codecache, name))
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    graphs, at_the_end_of_a_turn = programs(function), []
    parsed = [json.loads(graph) for graph in graphs]
    keys = [key.key({name: json.dumps(one[name], separators=(",", ":")) for name in key.SECTIONS}) for one in parsed]
    store = Store(tmp_path / "store")
    prepare(scratch.directory(store.root))  # otherwise the first job would build test programs for vector units
    store.root.chmod(0o700)
    end = rank_turns.WorkerTurn.end

    def look_and_end(turn: rank_turns.WorkerTurn) -> None:
        at_the_end_of_a_turn.append([number for number, name in enumerate(keys) if store.lookup(name)])
        end(turn)

    monkeypatch.setattr(rank_turns.WorkerTurn, "end", look_and_end)
    dist.destroy_process_group()
    try:
        job = wire.Job(
            id=uuid.uuid4().hex,
            key=keys[rank],
            store=str(store.root),
            device="cpu",
            graph=graphs[rank],
            compile_threads=1,
            failure_ttl_s=60.0,
            name="graph",
        )
        finished = compiler.run_job(job)
    finally:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert finished.outcome == "published", finished.message
    found = [store.lookup(name) for name in keys]
    assert [number for number, artifacts in enumerate(found) if artifacts] == published
    # When a turn ends, the waiting workers look up the artifact. An artifact that is valid for all places in the mesh
    # must be published before the turn ends. An artifact for one place is useless to the other workers, so the turn
    # ends before the artifact is published.
    assert at_the_end_of_a_turn[0] == (published if len(published) > 1 else [])
    for number in published:
        (artifact,) = found[number]
        assert store.read_program(artifact) == graphs[number] and artifact.manifest.key == keys[number]
        assert json.loads(artifact.manifest.components["inputs"])["meshes"][0]["rank"] == number
