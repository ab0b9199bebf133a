"""In a client: room for machine code on a GPU whose memory PyTorch's allocator has taken.

CUDA loads code into memory of its own, and eager steps need more of it than compiled ones: by the time of the swap the
allocator may hold the whole GPU, most of it in blocks that nobody uses.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
FULL = re.compile(r"CUDA[^\n]*out of memory")  # as PyTorch's allocator, CUDA's runtime and its driver say it


def with_room(load: Callable[[], T], device: str) -> T:
    """What ``load`` gives; where the GPU is full, once more after the allocator has given back what nobody uses."""
    try:
        return load()
    except RuntimeError as error:
        if device == "cpu" or not is_full(error):
            raise
    # This may be a thread in which another GPU is current: CUDA would make a context there, of hundreds of MB.
    with torch.cuda.device(device):
        torch.cuda.empty_cache()
    return load()


def is_full(error: BaseException) -> bool:
    """Whether an error says that a GPU has no memory left."""
    return FULL.search(str(error)) is not None
