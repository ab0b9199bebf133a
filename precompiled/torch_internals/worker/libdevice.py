"""Restores Triton's choice of CUDA's math library (libdevice) after a compile in a worker.

With the settings ``emulate_precision_casts`` or ``eager_numerics.use_pytorch_libdevice``, torch selects the CUDA
toolkit's library. Torch sets an environment variable and Triton's settings, for the rest of the process
(torch/_inductor/runtime/compile_tasks.py, _set_triton_libdevice_path). But a worker's next graph may belong to a
program without these settings, and so have a different key.

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
    """Restore the choice after one compile."""
    before = os.environ.get(VARIABLE)
    try:
        yield
    finally:
        if _is_set():
            del sys.modules["triton"].knobs.nvidia.libdevice_path
        if os.environ.get(VARIABLE) != before:
            # Torch's compile subprocesses inherited the setting, and torch 2.13 does not pass the reset on to them.
            torch._inductor.async_compile.shutdown_compile_workers()
            del os.environ[VARIABLE]  # torch does not change a variable that exists already, so it has created this one


def is_torchs() -> bool:
    """Whether torch, and not the user, has set the variable in this process."""
    home = getattr(sys.modules.get("torch.utils.cpp_extension"), "CUDA_HOME", None)
    own = home and os.path.join(home, "nvvm", "libdevice", "libdevice.10.bc")
    return os.environ.get(VARIABLE) == own and _is_set()


def _is_set() -> bool:
    knobs = getattr(sys.modules.get("triton"), "knobs", None)
    return knobs is not None and "libdevice_path" in vars(knobs.nvidia)
