"""One of several ranks over gloo. The rank computes a case eager and compiled, and compares the results.

Usage: ranks_program.py SPEC. SPEC is a JSON object:

- case, rank, ranks, rendezvous (a file)
- spare: the number of unused groups that the program creates first
- late_s: seconds by which the rank delays its first compile
- dies: the rank exits at its second call

Prints a JSON object with the reports.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from leaving import leave
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import precompiled

# The argument of a case is torch.compile or the identity. With either argument, the case must give equal tensors.
Case = Callable[[Callable[[Any], Any]], list[torch.Tensor]]


def halves() -> dist.ProcessGroup:
    """Create a group for each half of the ranks. Returns the group of this rank."""
    ranks = dist.get_world_size()
    parts = [list(range(ranks // 2)), list(range(ranks // 2, ranks))]
    groups = [dist.new_group(part) for part in parts]
    found: dist.ProcessGroup = groups[dist.get_rank() // (ranks // 2)]
    return found


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(dist.get_rank())
    return [torch.randn(*shape, requires_grad=True) for shape in shapes]


def with_gradients(output: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [output, *torch.autograd.grad(output.square().sum(), inputs)]


def one_group(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    group = halves()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        gathered = collectives.all_gather_tensor_autograd(x @ w, 0, group)
        reduced = collectives.reduce_scatter_tensor_autograd(gathered.sin(), "sum", 0, group)
        return reduced * collectives.all_reduce(x.detach(), "sum", group)

    inputs = leaves((4, 6), (6, 6))
    return with_gradients(compiled(function)(*inputs), inputs)


def several_groups(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    """A graph with three groups: the world, a half, and a second group with the ranks of the half.

    The two groups with equal ranks must stay separate.
    """
    first, second = halves(), halves()

    def function(x: torch.Tensor) -> torch.Tensor:
        x = collectives.all_gather_tensor_autograd(x, 0, second).relu()
        x = collectives.all_gather_tensor_autograd(x, 0, dist.group.WORLD).sin()
        return collectives.reduce_scatter_tensor_autograd(x, "sum", 0, first).cos()

    inputs = leaves((4, 6))
    return with_gradients(compiled(function)(*inputs), inputs)


class Block(torch.nn.Module):
    """Two linear layers with norms, in the form that tensor parallelism shards. ``width``: features between the two."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up, self.down = torch.nn.Linear(8, width), torch.nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Model(torch.nn.Module):
    def __init__(self, width: int = 16, words: int = 12) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(words, 8)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(2))
        self.head = torch.nn.Linear(8, words)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def blocks_by(plan: dict[str, Any], mesh: DeviceMesh, model: Model) -> None:
    for block in model.blocks:
        parallelize_module(block, mesh, plan)


def local(value: Any) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def trained(
    model: torch.nn.Module, compiled: Callable[[Any], Any], loss_of: Callable[..., Any], same: int = 0
) -> list[torch.Tensor]:
    """Run two training steps. Returns this rank's losses and gradients of both steps.

    Ranks with equal ``same`` have equal data.
    """
    torch.manual_seed(100 + same)
    tokens, labels = torch.randint(12, (4, 6)), torch.randint(12, (4, 6))
    function = compiled(lambda tokens, labels: loss_of(model(tokens), labels))
    found = []
    for _ in range(2):
        model.zero_grad(set_to_none=True)
        loss = function(tokens, labels)
        loss.backward()
        found += [local(loss).detach().clone()]
        found += [local(parameter.grad).clone() for parameter in model.parameters() if parameter.grad is not None]
    return found


def cross_entropy(logits: Any, labels: torch.Tensor) -> Any:
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def new_model(**sizes: int) -> Model:
    torch.manual_seed(0)
    return Model(**sizes)


def tensor_parallel(
    compiled: Callable[[Any], Any], size: int = 0, up: ColwiseParallel | None = None, **sizes: int
) -> list[torch.Tensor]:
    """Train with layers sharded by columns and by rows, and a head whose columns are gathered.

    ``size``: the number of ranks that share a model. 0 means all ranks.
    """
    ranks = dist.get_world_size()
    size = size or ranks
    mesh = init_device_mesh("cpu", (ranks // size, size), mesh_dim_names=("dp", "tp"))["tp"]
    model = new_model(**sizes)
    parallelize_module(model.head, mesh, ColwiseParallel(output_layouts=Replicate()))
    blocks_by({"up": up or ColwiseParallel(), "down": RowwiseParallel()}, mesh, model)
    return trained(model, compiled, cross_entropy)


def in_pairs(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    return tensor_parallel(compiled, size=2)


def uneven(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Train with layers whose shards have different sizes on different ranks."""
    return tensor_parallel(compiled, up=ColwiseParallel(use_local_output=False), width=15, words=13)


def sequence_parallel(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = new_model()
    embedding = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    parallelize_module(model.embedding, mesh, embedding)
    parallelize_module(model.head, mesh, ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()))
    plan = {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    }
    blocks_by(plan, mesh, model)
    return trained(model, compiled, cross_entropy)


def loss_parallel_too(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Train with a head whose output stays sharded. The loss is computed from the shards."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    model = new_model()
    parallelize_module(model.head, mesh, ColwiseParallel(output_layouts=Shard(-1), use_local_output=False))
    blocks_by({"up": ColwiseParallel(), "down": RowwiseParallel()}, mesh, model)
    with loss_parallel():
        return trained(model, compiled, cross_entropy)


def two_dimensional(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Train with blocks that are tensor-parallel within pairs of ranks, and sharded by FSDP2 over the pairs.

    Each block is compiled separately.
    """
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    model = new_model()
    blocks_by({"up": ColwiseParallel(), "down": RowwiseParallel()}, mesh["tp"], model)
    for block in model.blocks:
        block.forward = compiled(block.forward)
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return trained(model, lambda model: model, cross_entropy, dist.get_rank() // 2)


def any_size(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    """Train with batches of several sizes. The second artifact serves all sizes except the first."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    block = parallelize_module(Block(16), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    function = compiled(block)
    found = []
    for size in (3, 5, 7):
        block.zero_grad(set_to_none=True)
        output = function(torch.randn(size, 8))
        output.square().sum().backward()
        found += [output, *(local(parameter.grad).clone() for parameter in block.parameters())]
    return found


def plain_dtensors(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    """A graph that changes the placements of DTensors.

    No output with gradients is a DTensor, because torch 2.13 raises an error for such an output.
    """
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    x = distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)]).requires_grad_()
    w = distribute_tensor(torch.randn(6, 8), mesh, [Replicate()]).requires_grad_()

    def function(x: DTensor, w: DTensor) -> DTensor:
        return (x @ w).redistribute(placements=[Shard(1)]).sin()

    with torch.no_grad():
        y = compiled(function)(x, w)
    assert y.placements == (Shard(1),) and y.device_mesh == mesh
    z = compiled(lambda x, w: function(x, w).to_local())(x, w)
    z.square().sum().backward()
    assert x.grad is not None and w.grad is not None
    return [z, *(part for value in (y, x.grad, w.grad) for part in (value.to_local(), value.full_tensor()))]


CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        one_group,
        several_groups,
        tensor_parallel,
        in_pairs,
        uneven,
        sequence_parallel,
        loss_parallel_too,
        two_dimensional,
        any_size,
        plain_dtensors,
    )
}


def main() -> None:
    spec = json.loads(sys.argv[1])
    file = f"file://{spec['rendezvous']}"
    dist.init_process_group("gloo", init_method=file, rank=spec["rank"], world_size=spec["ranks"])
    for _ in range(spec.get("spare", 0)):
        dist.new_group()
    case = CASES[spec["case"]]
    expected = case(lambda function: function)
    precompiled.enable()
    time.sleep(spec.get("late_s", 0))
    for number in range(2):
        if number and spec.get("dies"):
            os._exit(9)
        found = case(torch.compile)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        assert precompiled.wait(300)
        dist.barrier()
    reports = [[graph.state, graph.source, graph.reason, graph.key] for graph in precompiled.report()]
    messages = [graph.message for graph in precompiled.report() if graph.state != "compiled"]
    print(json.dumps({"reports": reports, "messages": messages}), flush=True)
    leave()


if __name__ == "__main__":
    main()
