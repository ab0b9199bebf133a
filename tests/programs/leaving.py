"""How a rank ends that has trained with DistributedDataParallel over gloo."""

from __future__ import annotations

import os

import torch.distributed as dist


def leave() -> None:
    """Exit, once all ranks have come this far.

    Not by the end of Python: there DDP's reducer drops the group, whose destructor waits for its thread with the GIL
    held, and that thread may wait for the GIL to drop its last all-reduce. Plain torch 2.13 hung in one start of ten on
    a busy machine (c10d::ProcessGroupGloo::~ProcessGroupGloo).
    """
    dist.barrier()
    os._exit(0)
