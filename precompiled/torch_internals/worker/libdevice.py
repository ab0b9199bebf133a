"""In a worker: which of CUDA's mathematical libraries (libdevice) Triton takes is taken back after a compile.

Where a program asks for it (``emulate_precision_casts``, ``eager_numerics.use_pytorch_libdevice``), torch names the one
of CUDA's toolkit, in a variable and in Triton's settings, for the rest of the process
(torch/_inductor/runtime/compile_tasks.py, _set_triton_libdevice_path). The next graph of a worker is another program's,
which has not asked for it, and whose key says so.

Private names: torch._inductor.async_compile.shutdown_compile_workers. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

VARIABLE = "TRITON_LIBDEVICE_PATH"


@contextmanager
def taken_back() -> Iterator[None]:
    """For one compile."""
    before = os.environ.get(VARIABLE)
    try:
        yield
    finally:
        if _is_set():
            del sys.modules["triton"].knobs.nvidia.libdevice_path
        if os.environ.get(VARIABLE) != before:
            # Its processes were told, too, and not all versions tell them of the end (2.13).
            torch._inductor.async_compile.shutdown_compile_workers()
            del os.environ[VARIABLE]  # where there is one, torch leaves it


def is_torchs() -> bool:
    """Whether the variable is what torch has set in this process, and not the user's."""
    home = getattr(sys.modules.get("torch.utils.cpp_extension"), "CUDA_HOME", None)
    own = home and os.path.join(home, "nvvm", "libdevice", "libdevice.10.bc")
    return os.environ.get(VARIABLE) == own and _is_set()


def _is_set() -> bool:
    knobs = getattr(sys.modules.get("triton"), "knobs", None)
    return knobs is not None and "libdevice_path" in vars(knobs.nvidia)
