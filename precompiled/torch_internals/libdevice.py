"""In a worker: which of CUDA's mathematical libraries (libdevice) Triton takes is taken back after a compile.

Where a program asks for it (``emulate_precision_casts``, ``eager_numerics.use_pytorch_libdevice``), torch names the one
of CUDA's toolkit, in a variable and in Triton's settings, for the rest of the process
(torch/_inductor/runtime/compile_tasks.py, _set_triton_libdevice_path). The next graph of a worker is another program's,
which has not asked for it, and whose key says so.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "TRITON_LIBDEVICE_PATH"


@contextmanager
def taken_back() -> Iterator[None]:
    """For one compile."""
    before = os.environ.get(VARIABLE)
    try:
        yield
    finally:
        if is_set_here():
            del sys.modules["triton"].knobs.nvidia.libdevice_path
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before


def is_set_here() -> bool:
    """Whether code of this process has told Triton which one to take, as torch does."""
    knobs = getattr(sys.modules.get("triton"), "knobs", None)
    return knobs is not None and "libdevice_path" in vars(knobs.nvidia)
