"""Tests of how DTensors and meshes become plain data. Some of them are refused.

tests/e2e/test_ranks.py tests DTensors with two ranks over gloo.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from support_graphs import captured

from precompiled.core.errors import Bypass, CompileFailed
from precompiled.torch_internals import version_tuple
from precompiled.torch_internals.graph import graph_codec, input_metadata, process_groups
from precompiled.torch_internals.ranks import device_meshes, dtensor_state, dtensors, rank_dependence

dist = pytest.importorskip("torch.distributed")
if not dist.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    placement_types,
)

pytestmark = [
    pytest.mark.usefixtures("one_rank"),
    pytest.mark.skipif(version_tuple(torch.__version__) < (2, 13), reason="DTensors are refused on this torch"),
]


def sharded(mesh: DeviceMesh) -> DTensor:
    return distribute_tensor(torch.randn(4, 6), mesh, [Shard(0), Replicate()][: mesh.ndim])


def doubled(x: DTensor) -> DTensor:
    return x.redistribute(placements=[Replicate()] * x.device_mesh.ndim) * 2


@contextmanager
def in_a_worker(groups: dict[str, int]) -> Iterator[None]:
    """In this block the test process acts as a worker: it has no rank, and has substitutes for ``groups``."""
    dist.destroy_process_group()
    try:
        with process_groups.stand_ins(groups):
            yield
    finally:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def unheard() -> rank_dependence.RankReads:
    return rank_dependence.RankReads(lambda: None)


def refusal(function: Callable[..., Any], *inputs: Any) -> Bypass:
    with pytest.raises(Bypass) as refused:
        captured(function, *inputs)
    return refused.value


@pytest.mark.parametrize(
    "placement",
    [Replicate(), Shard(0), Shard(-1), Partial(), Partial("max"), placement_types._StridedShard(1, split_factor=2)],
    ids=str,
)
def test_placement_survives_the_round_trip(placement: Any) -> None:
    encoded = graph_codec.encode_constant((placement,))
    (again,) = graph_codec.decode_constant(json.loads(json.dumps(encoded)))
    assert type(again) is type(placement) and again == placement


@pytest.mark.reason("unsupported-argument")
def test_placement_class_of_the_program_is_refused() -> None:
    class Mine(Shard):
        pass

    with pytest.raises(Bypass) as refused:
        dtensors.encode_placement(Mine(0))
    assert refused.value.code == "unsupported-argument"


def test_worker_recreates_the_dtensors_of_the_client() -> None:
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    x = sharded(mesh).requires_grad_()
    program = captured(lambda x: (x * 2).to_local(), x).program
    assert "ranks" in program.no_stand_in and program.groups == (mesh.get_group().group_name,)
    inputs = json.loads(program.sections["inputs"])
    mode = input_metadata.new_fake_mode()
    with in_a_worker(program.modes["groups"]):
        stand_ins = device_meshes.create_meshes(inputs, unheard())
        (made,) = input_metadata.make_inputs(
            inputs, input_metadata.size_maker(inputs, [], [], mode), mode, found_meshes=stand_ins
        )
        assert isinstance(made, DTensor) and made.requires_grad and made.is_leaf
        assert (made.shape, made.stride(), made.placements) == (x.shape, x.stride(), x.placements)
        assert made.device_mesh is stand_ins[0] and made.device_mesh.get_coordinate() == (0,)
        assert made.device_mesh.mesh_dim_names == ("tp",) and made.to_local().shape == x.to_local().shape


def test_stand_in_mesh_equals_no_other_and_cannot_be_pickled() -> None:
    """torch caches sharding decisions by mesh, and its comparison of meshes ignores groups and the rank's place.

    If a worker's meshes were equal, one compile would use the decisions of another compile.
    """
    program = captured(doubled, sharded(init_device_mesh("cpu", (1,)))).program
    inputs = json.loads(program.sections["inputs"])
    with in_a_worker(program.modes["groups"]):
        (first,), (second,) = (device_meshes.create_meshes(inputs, unheard()) for _ in range(2))
    assert first != second and hash(first) != hash(second)
    with pytest.raises(TypeError):
        pickle.dumps(first)


PAIRS = {
    "device": "cpu",
    "shape": [2, 2],
    "names": ["dp", "tp"],
    "ranks": [0, 1, 2, 3],
    "rank": 2,
    "groups": ["a", "b"],
}


@contextmanager
def third_of_four() -> Iterator[tuple[Any, list[str], rank_dependence.RankReads]]:
    """In this block the test process acts as a worker with a mesh of two pairs of ranks, at the place of rank 2.

    Yields the mesh, a list with one element per first read of the place, and the record of such reads.
    """
    reads: list[str] = []
    with in_a_worker({"a": 2, "b": 2}):
        asked = rank_dependence.RankReads(lambda: reads.append("asked"))
        (mesh,) = device_meshes.create_meshes({"meshes": [PAIRS]}, asked)
        with rank_dependence.answering(asked):
            yield mesh, reads, asked


@pytest.mark.parametrize(
    "look",
    [
        lambda mesh: mesh.get_local_rank("dp") == 1,
        lambda mesh: mesh.get_coordinate() == (1, 0),
        lambda mesh: list(mesh.get_coordinate()) == [1, 0],
        lambda mesh: mesh.get_coordinate()[1] == 0,
        lambda mesh: mesh._sym_get_coordinate(0) == 1,
        lambda mesh: str(mesh.get_coordinate()) == "(1, 0)",
        lambda mesh: hash(mesh.get_coordinate()) == hash((1, 0)),
    ],
)
def test_reading_a_ranks_coordinate_is_recorded(look: Callable[[Any], bool]) -> None:
    with third_of_four() as (mesh, reads, asked):
        assert len(mesh.get_coordinate()) == 2 and mesh._is_current_rank_part_of_mesh() and not asked.yes
        assert look(mesh) and look(mesh)
        assert reads == ["asked"] and asked.yes


def test_stand_in_mesh_reveals_no_rank_without_a_record() -> None:
    with pytest.raises(CompileFailed), third_of_four() as (mesh, _, asked):
        with pytest.raises(AttributeError):
            _ = mesh._rank
        with pytest.raises(TypeError):
            pickle.dumps(mesh.get_coordinate())
        assert mesh.mesh.tolist() == [[0, 1], [2, 3]] and not asked.yes
        mesh.get_rank()  # the rank's number among all ranks, which raises CompileFailed


def test_shard_size_is_rank_dependent_only_if_shards_differ() -> None:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as computed

    with third_of_four() as (mesh, _, asked):
        assert computed((8, 6), mesh, [Shard(0), Replicate()], True) == ((4, 6), ())
        assert computed((8, 6), mesh, [Replicate(), Replicate()]) == ((8, 6), (0, 0))
        shape, offset = computed((8, 6), mesh, [Shard(0), Shard(1)])
        assert shape == (4, 3) and len(offset) == 2 and not asked.yes
        assert tuple(offset) == (4, 0) and asked.yes
    with third_of_four() as (mesh, _, asked):
        assert computed((7, 6), mesh, [Shard(0), Replicate()], True) == ((3, 6), ())
        assert asked.yes


def test_equal_meshes_with_different_groups_are_distinct() -> None:
    first, second = (init_device_mesh("cpu", (1,)) for _ in range(2))
    found = device_meshes.Meshes()
    assert [found.number(mesh) for mesh in (first, second, first)] == [0, 0, 0]  # meshes over the same group are equal
    second._dim_group_names = [dist.new_group([0]).group_name]
    assert [found.number(mesh) for mesh in (first, second, first)] == [0, 1, 0]


@pytest.mark.reason("mesh")
def test_mesh_flattened_outside_of_the_graph_is_refused() -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    captured(doubled, sharded(mesh))
    mesh._flatten("all")
    refused = refusal(doubled, sharded(mesh))
    assert refused.code == "mesh" and "flattened" in str(refused)
    captured(doubled, sharded(mesh["tp"]))


@pytest.mark.reason("mesh")
@pytest.mark.parametrize(("change", "said"), [("coordinate", "this rank"), ("groups", "groups"), ("thread", "thread")])
def test_incomplete_mesh_is_refused(change: str, said: str) -> None:
    mesh = init_device_mesh("cpu", (1,))
    if change == "coordinate":
        mesh._coordinate_on_dim = None
    elif change == "groups":
        mesh._dim_group_names = []
    else:
        mesh._thread_id = 5
    with pytest.raises(Bypass) as refused:
        device_meshes.Meshes().number(mesh)
    assert refused.value.code == "mesh" and said in str(refused.value)


@pytest.mark.reason("dtensor-state")
def test_unsupported_dtensor_state_is_refused() -> None:
    from torch.distributed.tensor._utils import ExplicitRedistributionContext
    from torch.distributed.tensor.experimental import register_sharding

    x = sharded(init_device_mesh("cpu", (1,)))
    with ExplicitRedistributionContext(mode="warn"):
        assert refusal(doubled, x).code == "dtensor-state"
    config = torch.compiler.config if hasattr(torch.compiler.config, "compile_on_one_rank") else dist.config
    with config.patch(compile_on_one_rank=True), pytest.raises(Bypass, match="compile_on_one_rank"):
        dtensor_state.read()
    captured(doubled, x)
    rules = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    op = torch.ops.aten.sin.default
    before = rules.get(op)
    register_sharding(op)(lambda x: [])
    try:
        assert "aten.sin" in str(refusal(doubled, x))
    finally:
        rules.pop(op)
        if before is not None:
            rules[op] = before
    captured(doubled, x)


def test_dtensor_state_is_in_the_key_and_applied_in_the_worker() -> None:
    from torch.distributed.tensor.experimental import implicit_replication
    from torch.distributed.tensor.parallel import loss_parallel

    x = sharded(init_device_mesh("cpu", (1,)))
    plain = captured(doubled, x)
    states = [dtensor_state.read()]
    for context in (loss_parallel(), implicit_replication()):
        with context:
            assert captured(doubled, x).key != plain.key
            states.append(dtensor_state.read())
    assert captured(doubled, x).key == plain.key
    for state in states:
        with dtensor_state.applied(state):
            assert dtensor_state.read() == state
        assert dtensor_state.read() == states[0]
    with pytest.raises(CompileFailed), dtensor_state.applied({**states[0], "handlers": []}):
        pass


@pytest.mark.reason("rank-dependent")
def test_generated_code_with_ranks_of_a_mesh_is_refused() -> None:
    code = "buf1 = torch.ops._c10d_functional.broadcast.default(buf0, 0, 'precompiled-group-0')"
    device_meshes.refuse_ranks([], code)
    with pytest.raises(CompileFailed) as refused:
        device_meshes.refuse_ranks([object()], code)
    assert refused.value.code == "rank-dependent"
