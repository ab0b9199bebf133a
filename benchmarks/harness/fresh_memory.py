"""Fills the GPU memory that compiled code allocates with one byte. Kernels of a made-up GPU may not write it.

Private names: torch._C._dynamo.guards._empty_strided_cuda. Checked on 2.15.0.
"""

from __future__ import annotations

from typing import Any

import torch


def fill(byte: int) -> None:
    """Fill each allocation of code loaded later with ``byte``. 0 gives zeros; 255 gives NaN, or -1 for integers."""
    allocate = torch._C._dynamo.guards._empty_strided_cuda

    def empty_strided_cuda(*args: Any, **kwargs: Any) -> Any:
        made = allocate(*args, **kwargs)
        if made.untyped_storage().nbytes():
            made.untyped_storage().fill_(byte)
        return made

    torch._C._dynamo.guards._empty_strided_cuda = empty_strided_cuda
