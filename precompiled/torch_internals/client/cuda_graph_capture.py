"""CUDA graphs that the program captures (``torch.cuda.graph``), and what of ours must not come in between.

While one is captured, CUDA forbids other threads too to load code or to take memory, and breaks the capture of whoever
is not asked not to (torch's default, capture_error_mode="global"). The swap thread does both when it loads an artifact.
That is for a thread that works for the captured one; ours has nothing to do with it, and says so to CUDA.

The call is of CUDA's driver. No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


def is_capturing() -> bool:
    """Whether this thread captures a CUDA graph: on its current stream."""
    return torch.cuda.is_current_stream_capturing()


@contextmanager
def unconcerned() -> Iterator[None]:
    """Captures of other threads neither forbid what this thread does in here, nor are broken by it."""
    exchange = _exchange() if torch.cuda.is_initialized() else None
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(_THREAD_LOCAL)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


def _exchange() -> Any:
    """CUDA's cuThreadExchangeStreamCaptureMode; None where there is no such driver."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode  # loaded already, by torch.cuda
    except (OSError, AttributeError):
        return None
