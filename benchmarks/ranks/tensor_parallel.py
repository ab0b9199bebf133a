"""Defines the cases with tensor parallelism: DTensors on a mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
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
from torch.nn import functional

from benchmarks.ranks.registry import Net, Values, batch, case, loss_of, trained

KIND = "tensor parallel"


def _divided(model: Net, mesh: DeviceMesh) -> Net:
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


@case(KIND)
def tensor_parallel() -> Iterator[Values]:
    """Each block's first layer divided by columns, its second by rows."""
    model = _divided(Net(), init_device_mesh("cpu", (2,)))
    compiled = torch.compile(model)
    yield from trained(model, lambda step: loss_of(compiled, step, same=True))


@case(KIND)
def tensor_parallel_blocks() -> Iterator[Values]:
    """The same, with blocks compiled separately."""
    model = _divided(Net(), init_device_mesh("cpu", (2,)))
    for block in model.blocks:
        block.compile()
    yield from trained(model, lambda step: loss_of(model, step, same=True))


@case(KIND)
def sequence_parallel() -> Iterator[Values]:
    """Norms divided by rows, too."""
    mesh = init_device_mesh("cpu", (2,))
    model = Net()
    for block in model.blocks:
        plan = {
            "norm": SequenceParallel(sequence_dim=0),
            "up": ColwiseParallel(input_layouts=Shard(0)),
            "down": RowwiseParallel(output_layouts=Shard(0)),
        }
        parallelize_module(block, mesh, plan)
    parallelize_module(
        model,
        mesh,
        {
            "first": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
            "last": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
        },
    )
    compiled = torch.compile(model)
    yield from trained(model, lambda step: loss_of(compiled, step, same=True))


@case(KIND)
def parallel_loss() -> Iterator[Values]:
    """Classes divided among the ranks up to the loss (loss_parallel)."""
    model = _divided(Net(), mesh := init_device_mesh("cpu", (2,)))
    parallelize_module(model, mesh, {"last": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})
    compiled = torch.compile(model)

    def loss(step: int) -> torch.Tensor:
        numbers, classes = batch(step, same=True)
        return functional.cross_entropy(compiled(numbers), classes)

    # The context manager also spans the backward. ``loss_parallel`` must not be nested, because an inner one would end
    # the outer one.
    with loss_parallel():
        yield from trained(model, loss)


@case(KIND, ranks=4)
def two_dimensions() -> Iterator[Values]:
    """Tensor parallel within pairs, fully_shard across pairs, each block compiled."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = _divided(Net(), mesh["tensor"])
    for block in model.blocks:
        block.compile()
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    yield from trained(model, lambda step: loss_of(model, step, same=True))


@case(KIND)
def placements() -> Iterator[Values]:
    """A function that changes the placement of unevenly divided DTensors."""
    mesh = init_device_mesh("cpu", (2,))
    weight = torch.nn.Parameter(distribute_tensor(torch.randn(5, 8), mesh, [Shard(0)]))

    def function(x: DTensor) -> Any:
        divided = torch.nn.functional.linear(x, weight)
        return divided.redistribute(placements=[Replicate()]).square().mean()

    compiled = torch.compile(function)
    for step in range(3):
        weight.grad = None
        x = distribute_tensor(batch(step, same=True)[0], mesh, [Replicate()])
        loss = compiled(x)
        loss.backward()
        assert isinstance(weight.grad, DTensor)
        yield {"loss": loss.to_local().detach(), "gradient of weight": weight.grad.to_local().clone()}
