"""Defines the cases with data parallelism: each rank has the whole model and its own part of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ranks.registry import STEPS, Net, Values, batch, case, gradients, local, loss_of, trained

KIND = "data parallel"


@case(KIND)
def ddp() -> Iterator[Values]:
    """A model in DistributedDataParallel, compiled as a whole."""
    model = DistributedDataParallel(Net())
    compiled = torch.compile(model)
    yield from trained(model, lambda step: loss_of(compiled, step))


@case(KIND)
def ddp_around() -> Iterator[Values]:
    """DistributedDataParallel around a compiled model."""
    net = Net()
    model = DistributedDataParallel(torch.compile(net))
    yield from trained(net, lambda step: loss_of(model, step))


@case(KIND)
def ddp_buckets() -> Iterator[Values]:
    """Small buckets, at which Dynamo splits the graph."""
    model = DistributedDataParallel(Net(width=256, blocks=3), bucket_cap_mb=1, gradient_as_bucket_view=True)
    compiled = torch.compile(model)
    yield from trained(model, lambda step: loss_of(compiled, step))


@case(KIND)
def ddp_no_sync() -> Iterator[Values]:
    """Gradients of two batches, summed before ranks communicate (no_sync)."""
    model = DistributedDataParallel(Net())
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            with model.no_sync() if part == 0 else nullcontext():
                loss = loss_of(compiled, 2 * step + part)
                loss.backward()
        found = {"loss": local(loss), **gradients(model)}
        optimizer.step()
        yield found


@case(KIND)
def ddp_static_graph() -> Iterator[Values]:
    """DistributedDataParallel(static_graph=True)."""
    model = DistributedDataParallel(Net(), static_graph=True)
    compiled = torch.compile(model)
    yield from trained(model, lambda step: loss_of(compiled, step))


class _TwoHeads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Net()
        self.heads = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor, head: int) -> torch.Tensor:
        answer: torch.Tensor = self.heads[head](self.body(x))
        return answer


@case(KIND)
def ddp_unused() -> Iterator[Values]:
    """Unused parameters (find_unused_parameters), different in each step and on each rank."""
    model = DistributedDataParallel(_TwoHeads(), find_unused_parameters=True)
    compiled = torch.compile(model)

    def loss(step: int) -> torch.Tensor:
        numbers, classes = batch(step)
        return torch.nn.functional.cross_entropy(compiled(numbers, (step + dist.get_rank()) % 2), classes)

    yield from trained(model, loss)


@case(KIND)
def ddp_hook() -> Iterator[Values]:
    """A communication hook that sends gradients in half precision."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DistributedDataParallel(Net())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    compiled = torch.compile(model)
    yield from trained(model, lambda step: loss_of(compiled, step))


@case(KIND)
def ddp_python_reducer() -> Iterator[Values]:
    """The reducer in Python: compiled autograd puts its collectives into the backward's graph."""
    torch._dynamo.config.optimize_ddp = "python_reducer"
    torch._dynamo.config.compiled_autograd = True
    model = DistributedDataParallel(Net())
    compiled = torch.compile(model)

    def loss(step: int) -> torch.Tensor:
        return loss_of(compiled, step)

    yield from trained(model, loss)


@case(KIND)
def ddp_checkpointing() -> Iterator[Values]:
    """Blocks that are recomputed in the backward."""
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.last(x)

    model = DistributedDataParallel(Checkpointed())
    compiled = torch.compile(model)
    yield from trained(model, lambda step: loss_of(compiled, step))


@case(KIND)
def ddp_join() -> Iterator[Values]:
    """Ranks with differing numbers of batches (join)."""
    from torch.distributed.algorithms.join import Join

    model = DistributedDataParallel(Net())
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Join([model]):
        for step in range(STEPS + dist.get_rank()):
            optimizer.zero_grad()
            loss = loss_of(compiled, step)
            loss.backward()
            found = {"loss": local(loss), **gradients(model)}
            optimizer.step()
            yield found


@case(KIND)
def zero_optimizer() -> Iterator[Values]:
    """ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(Net())
    compiled = torch.compile(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    yield from trained(model, lambda step: loss_of(compiled, step), optimizer=optimizer)


@case(KIND)
def local_sgd() -> Iterator[Values]:
    """Ranks that average their weights every second step (local SGD)."""
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = Net()
    compiled = torch.compile(model)
    averager = PeriodicModelAverager(period=2, warmup_steps=0)
    for found in trained(model, lambda step: loss_of(compiled, step)):
        averager.average_parameters(model.parameters())
        weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        yield {**found, **weights}


@case(KIND)
def own_collectives() -> Iterator[Values]:
    """A program that averages gradients itself, and compiles its optimizer step."""
    model = Net()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
    advance = torch.compile(optimizer.step)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(compiled, step)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        found = {"loss": local(loss), **gradients(model)}
        advance()
        yield found
