"""Fills each GPU allocation of compiled code with a constant byte. Kernels of a made-up GPU may leave the memory
unwritten.

Private names: torch._C._dynamo.guards._empty_strided_cuda. Checked on 2.15.0.
"""

from __future__ import annotations

from typing import Any

import torch


def fill(byte: int) -> None:
    """From now on, fill each allocation of newly loaded code with ``byte``. 0 gives zeros; 255 gives NaN, or -1 for
    integers.
    """
    allocate = torch._C._dynamo.guards._empty_strided_cuda

    def empty_strided_cuda(*args: Any, **kwargs: Any) -> Any:
        made = allocate(*args, **kwargs)
        if made.untyped_storage().nbytes():
            made.untyped_storage().fill_(byte)
        return made

    torch._C._dynamo.guards._empty_strided_cuda = empty_strided_cuda
