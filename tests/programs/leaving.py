"""Ends a rank that has trained with DistributedDataParallel over gloo."""

from __future__ import annotations

import os

import torch.distributed as dist


def leave() -> None:
    """Exit once all ranks have reached this point, without Python's finalisation, which may hang.

    The deadlock is in plain torch 2.13 (c10d::ProcessGroupGloo::~ProcessGroupGloo). The group's destructor holds the
    GIL and waits for the group's thread. The thread may need the GIL to drop its last all-reduce. On a busy machine,
    one of ten starts hung.
    """
    dist.barrier()
    os._exit(0)
