"""What compiled code allocates on a GPU, filled with one byte: on a made-up GPU no kernel writes it, or not all of it.

Private names: torch._C._dynamo.guards._empty_strided_cuda. Checked on 2.15.0.
"""

from __future__ import annotations

from typing import Any

import torch


def fill(byte: int) -> None:
    """From now on in this process, for code that is loaded later. 0: zeros; 255: NaN, -1 of integers."""
    allocate = torch._C._dynamo.guards._empty_strided_cuda

    def empty_strided_cuda(*args: Any, **kwargs: Any) -> Any:
        made = allocate(*args, **kwargs)
        if made.untyped_storage().nbytes():
            made.untyped_storage().fill_(byte)
        return made

    torch._C._dynamo.guards._empty_strided_cuda = empty_strided_cuda
