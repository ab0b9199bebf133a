"""Keeps artifact loads from breaking a CUDA graph that the program captures (``torch.cuda.graph``).

During a capture, CUDA by default forbids all threads to load code or allocate memory: a thread that does so breaks the
capture (torch's default capture_error_mode="global"). The swap thread does both (loads code and allocates memory) for
an artifact. CUDA's rule is meant for threads that work for the capturing thread, so the swap thread opts out with
cuThreadExchangeStreamCaptureMode, a function of CUDA's driver API.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


def is_capturing() -> bool:
    """Whether this thread captures a CUDA graph on its current stream."""
    return torch.cuda.is_current_stream_capturing()


@contextmanager
def unconcerned() -> Iterator[None]:
    """Within this context, captures of other threads do not restrict this thread, and this thread cannot break them."""
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
    """CUDA's cuThreadExchangeStreamCaptureMode; None if the driver lacks it."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode  # loaded already, by torch.cuda
    except (OSError, AttributeError):
        return None
