"""Frees GPU memory for machine code in a client, if PyTorch's allocator holds all of it.

CUDA loads machine code into memory outside the allocator. Eager steps need more memory than compiled ones, so at the
time of the swap the allocator may hold the whole GPU, although most of its blocks are unused.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
FULL = re.compile(r"CUDA[^\n]*out of memory")  # in the messages of PyTorch's allocator, CUDA's runtime and its driver


def with_room(load: Callable[[], T], device: str) -> T:
    """The result of ``load``. If the GPU is full, free the allocator's unused blocks and call ``load`` again."""
    try:
        return load()
    except RuntimeError as error:
        if device == "cpu" or not is_full(error):
            raise
    # CUDA would create a context of hundreds of MB on another GPU, if that one is current in this thread.
    with torch.cuda.device(device):
        torch.cuda.empty_cache()
    return load()


def is_full(error: BaseException) -> bool:
    """Whether an error means that a GPU has no memory left."""
    return FULL.search(str(error)) is not None
