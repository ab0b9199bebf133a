"""Defines the cases whose parameters are divided among the ranks and gathered before use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from benchmarks.ranks.registry import Block, Net, Values, case, loss_of, trained

KIND = "sharded"


def _sharded(model: Net, **options: Any) -> Net:
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def _per_block(**options: Any) -> Iterator[Values]:
    model = Net()
    for block in model.blocks:
        block.compile()
    _sharded(model, **options)
    yield from trained(model, lambda step: loss_of(model, step))


@case(KIND)
def fsdp1() -> Iterator[Values]:
    """FullyShardedDataParallel(use_orig_params=True), compiled as a whole."""
    model = FullyShardedDataParallel(
        Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True, device_id=torch.device("cpu")
    )
    compiled = torch.compile(model)
    yield from trained(model, lambda step: loss_of(compiled, step))


@case(KIND)
def fsdp2_blocks() -> Iterator[Values]:
    """fully_shard for each block, and each block compiled."""
    yield from _per_block()


@case(KIND)
def fsdp2_whole() -> Iterator[Values]:
    """fully_shard for each block, and the model compiled as a whole."""
    model = _sharded(Net())
    compiled = torch.compile(model)
    yield from trained(model, lambda step: loss_of(compiled, step))


@case(KIND)
def fsdp2_checkpointing() -> Iterator[Values]:
    """fully_shard and checkpointing of each block, compiled."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Net()
    for position, block in enumerate(model.blocks):
        wrapped = checkpoint_wrapper(block)
        wrapped.compile()
        model.blocks[position] = wrapped
    _sharded(model)
    yield from trained(model, lambda step: loss_of(model, step))


@case(KIND, half=True)
def fsdp2_half() -> Iterator[Values]:
    """fully_shard with gathers in bfloat16 and sums in float32."""
    yield from _per_block(mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


@case(KIND)
def fsdp2_kept() -> Iterator[Values]:
    """fully_shard(reshard_after_forward=False)."""
    yield from _per_block(reshard_after_forward=False)


@case(KIND, ranks=4)
def fsdp2_partly() -> Iterator[Values]:
    """fully_shard(reshard_after_forward=2)."""
    yield from _per_block(reshard_after_forward=2)


@case(KIND, ranks=4)
def hybrid() -> Iterator[Values]:
    """fully_shard within pairs, replicated across pairs."""
    yield from _per_block(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("repeated", "divided")))
