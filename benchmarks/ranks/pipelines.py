"""Defines the cases with pipeline parallelism, and with checkpoints that are written during training."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.ranks.registry import STEPS, Block, Net, Values, batch, case, gradients, loss_of, trained

KIND = "pipeline"
MICRO_BATCHES, STAGES = 4, 4


def _part(stage: int, stages: int) -> torch.nn.Module:
    torch.manual_seed(stage)
    layers: list[torch.nn.Module] = [Block(8), Block(8)]
    return torch.nn.Sequential(*layers, *([torch.nn.Linear(8, 4)] if stage == stages - 1 else []))


def _steps(schedule: Any, parts: list[torch.nn.Module], first: bool, last: bool) -> Iterator[Values]:
    for step in range(STEPS):
        for part in parts:
            part.zero_grad()
        numbers, classes = batch(step, same=True)
        losses: list[torch.Tensor] = []
        schedule.step(*([numbers] if first else []), **({"target": classes, "losses": losses} if last else {}))
        found: dict[str, Any] = {"loss": torch.stack(losses).detach()} if losses else {}
        for number, part in enumerate(parts):
            found |= {f"{name}, stage {number}": value for name, value in gradients(part).items()}
        yield found


def _one_each(schedule: Any) -> Iterator[Values]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = _part(rank, ranks)
    stage = PipelineStage(torch.compile(part), rank, ranks, torch.device("cpu"))
    made = schedule(stage, MICRO_BATCHES, loss_fn=functional.cross_entropy)
    yield from _steps(made, [part], rank == 0, rank == ranks - 1)


@case(KIND)
def gpipe() -> Iterator[Values]:
    """GPipe's schedule over compiled stages."""
    yield from _one_each(ScheduleGPipe)


@case(KIND)
def one_forward_one_backward() -> Iterator[Values]:
    """1F1B over compiled stages."""
    yield from _one_each(Schedule1F1B)


@case(KIND)
def interleaved() -> Iterator[Values]:
    """Interleaved 1F1B: two compiled stages on each rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    numbers = range(rank, STAGES, ranks)
    parts = [_part(number, STAGES) for number in numbers]
    stages = [
        PipelineStage(torch.compile(part), number, STAGES, torch.device("cpu"))
        for number, part in zip(numbers, parts, strict=True)
    ]
    made = ScheduleInterleaved1F1B(stages, MICRO_BATCHES, loss_fn=functional.cross_entropy)
    yield from _steps(made, parts, rank == 0, rank == ranks - 1)


@case("around")
def asynchronous_checkpoint() -> Iterator[Values]:
    """Checkpoints while graphs are pending (torch.distributed.checkpoint.async_save)."""
    model = DistributedDataParallel(Net())
    compiled = torch.compile(model)
    folder = Path(tempfile.gettempdir()) / f"checkpoints-{os.environ['TORCHELASTIC_RUN_ID']}"
    for step, found in enumerate(trained(model, lambda step: loss_of(compiled, step))):
        saved = dcp.async_save({"model": model.state_dict()}, checkpoint_id=folder / str(step))
        yield found
        saved.result()
        state = {"model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()}}
        dcp.load(state, checkpoint_id=folder / str(step))
        yield {name: value.clone() for name, value in state["model"].items()}
