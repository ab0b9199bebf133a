"""Tests of packages with process groups. Only the same rank of a group of equal size may use a rank's package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support_host import Host

from precompiled.packages.describe.descriptions import Descriptions
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo import ranks, split_graphs

PROGRAM = Path(__file__).parent.parent / "programs" / "package_ranks_program.py"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]


def start(host: Host, name: str, order: list[int]) -> list[Any]:
    """Run all ranks and return their answers. ``order``: the order in which the ranks create groups of their own."""
    spec = {"ranks": len(order), "order": order, "rendezvous": str(host.root / name)}
    env = {"OMP_NUM_THREADS": "1", "PRECOMPILED_PACKAGES": "function", "PRECOMPILED_MODE": "wait"}
    started = [host.start({**spec, "rank": rank}, env=env, program=PROGRAM) for rank in range(len(order))]
    answers = [client.result() for client in started]
    assert all(answer["equal"] for answer in answers), answers
    return answers


def test_rank_traces_once_and_again_if_the_group_size_changes(served: Host) -> None:
    """The program covers collectives, constants that contain the rank, and a graph that DDP splits into buckets."""
    first = start(served, "first", [0, 1])
    assert all(answer["traced"] and not any(r for *_, r in answer["functions"]) for answer in first), first
    assert all(len(answer["sources"]) > 4 for answer in first), "the graph of the model is not cut"
    second = start(served, "second", [0, 1])
    assert [answer["traced"] for answer in second] == [0, 0], second
    assert {source for answer in second for source in answer["sources"]} == {"package"}
    (other,) = start(served, "other", [0])
    assert other["traced"]
    assert any("process groups: rank 0 of 1" in reason for reason in other["reasons"]), other


@pytest.mark.slow
def test_changed_group_names_invalidate_the_package(served: Host) -> None:
    start(served, "first", [0, 1])
    for answer in start(served, "second", [1, 0]):
        assert any("process groups" in reason for reason in answer["reasons"]), answer


def test_dtensor_state_reflects_loss_parallel_and_implicit_replication() -> None:
    """loss_parallel() and implicit_replication() change a graph with DTensors. A package hit computes no key for the
    graph, so the package itself must check the state.
    """
    from torch.distributed.tensor.experimental import implicit_replication
    from torch.distributed.tensor.parallel import loss_parallel

    states = [ranks.dtensors_state()]
    for context in (loss_parallel(), implicit_replication()):
        with context:
            states.append(ranks.dtensors_state())
    assert states[0] == ranks.dtensors_state() == "default" and len(set(states)) == 3, states


def test_dtensor_description_includes_its_placement(one_rank: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tensor",))
    specs = [
        distribute_tensor(torch.ones(4, 2), mesh, [placement])._spec for placement in (Shard(0), Shard(1), Replicate())
    ]
    described = [ranks.describe_distributed(spec) for spec in specs]
    assert len({repr(one) for one in described}) == 3
    described_mesh = ["cpu", [0], ["tensor"], [mesh.get_group().group_name], [0]]
    assert described[0][0] == ranks.describe_distributed(mesh) == described_mesh
    again = Descriptions()
    assert [Descriptions().value(spec) for spec in specs] == [again.value(spec) for spec in specs]
    _kind, (placement,) = Descriptions().value((Shard(1),))
    assert placement == ["self-described", "torch.distributed.tensor.placement_types.Shard", ["Shard", 1]]


def test_parts_of_a_split_graph_are_called_as_torch_calls_them() -> None:
    def of(value: torch.Tensor) -> Any:
        return (value + 1,)

    def two(left: torch.Tensor, right: int) -> Any:
        return left * right, left - right

    class Part(torch.nn.Module):
        def __init__(self, function: Any, only: bool) -> None:
            super().__init__()
            self.submod, self.unwrap_singleton_tuple = function, only

        def forward(self, *args: Any) -> Any:
            found = self.submod(*args)
            return found[0] if self.unwrap_singleton_tuple else found

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Part(of, only=True), Part(two, only=False)

        def forward(self, x: torch.Tensor) -> Any:
            pair = self.second(self.first(x), 3)
            return pair[1], (pair[0], None)

    class Calls(torch.fx.Tracer):
        def is_leaf_module(self, module: torch.nn.Module, name: str) -> bool:
            return True

    whole = Whole()
    module = torch.fx.GraphModule(whole, Calls().trace(whole))
    functions = [of, two]
    steps = split_graphs.steps_of(module, functions.index)
    x = torch.arange(3.0)
    got, expected = split_graphs.called_in_turn(steps, functions)(x), module(x)
    assert torch.equal(got[0], expected[0]) and torch.equal(got[1][0], expected[1][0]) and got[1][1] is None

    with pytest.raises(NotPortable, match="for this process alone"):
        split_graphs.steps_of(module, lambda function: None)
    doubled = torch.fx.symbolic_trace(lambda x: x + x)
    with pytest.raises(NotPortable, match="has a call_function"):
        split_graphs.steps_of(doubled, functions.index)
