"""Limits a worker's use of GPU memory, so that the user's programs have enough.

- Between two jobs a worker keeps nothing on the GPU except its context.
- If a worker finds no memory, not even for a context, it leaves the graph to the client that requested the job, because
  the graph may be valid.
- If PyTorch's allocator refuses memory for a measurement, torch continues as if the measured choice were the slowest
  (torch/_inductor/select_algorithm.py, benchmark_choices), and caches this result. The worker then publishes and caches
  nothing, unless the compile had the GPU to itself.
- If other processes use the GPU, a compile may use half of the free memory, so that memory runs out in the compile's
  measurements before it runs out in a program's step.

In exclusive-process mode, only one process at a time can have a context on the GPU. A worker must not take the context,
because the worker keeps running and the next program would find no GPU. Under MPS all processes count as one.

Private names: torch._C.{_cuda_clearCublasWorkspaces, _cuda_hasPrimaryContext},
torch._inductor.codecache.CacheBase.get_local_cache_path, torch._inductor.runtime.cache_dir_utils.cache_dir.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from torch._inductor.codecache import CacheBase
from torch._inductor.runtime.cache_dir_utils import cache_dir

from precompiled.core.errors import CompileFailed
from precompiled.torch_internals.gpu_room import FULL

OF_OTHERS = 0.25  # other processes count if they use more than this fraction of a GPU's memory; a context uses far less
OF_FREE = 0.5  # fraction of the free memory, for a compile beside other processes
_COMPUTE_MODE, _DEFAULT = 20, 0  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT
_MPS = "/tmp/nvidia-mps"


@contextmanager
def given_back() -> Iterator[None]:
    """At a compile's end, garbage-collect its objects (docs/decisions/0014), and free the GPU memory that it allocated.

    Raises CompileFailed if the GPU is in exclusive-process mode. Also raises CompileFailed if memory ran out while
    other processes used the GPU, even if the compile handled the error.
    """
    beside = False
    if torch.cuda.is_available():
        refuse_exclusive()
        (free, total), beside = torch.cuda.mem_get_info(), _is_others()
        torch.cuda.set_per_process_memory_fraction(OF_FREE * free / total if beside else 1.0)
    before = _refused()
    try:
        yield
        if _refused() > before and (beside or _is_others()):
            raise _full()
    except Exception as error:
        if _refused() > before and (beside or _is_others()) and not isinstance(error, CompileFailed):
            raise _full() from error
        raise
    finally:
        gc.collect()
        if torch.cuda.is_initialized():
            torch._C._cuda_clearCublasWorkspaces()  # the allocator counts these blocks as used until they are cleared
            torch.cuda.empty_cache()


def refuse_exclusive() -> None:
    """Raise CompileFailed if the GPU is in exclusive-process mode. Creates no context."""
    # These calls need no context. After an error, ``mode`` keeps its default value.
    driver = ctypes.CDLL("libcuda.so.1")
    device, mode = ctypes.c_int(0), ctypes.c_int(_DEFAULT)
    driver.cuInit(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetAttribute(ctypes.byref(mode), _COMPUTE_MODE, device)
    below_mps = os.path.exists(os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS), "control"))
    if mode.value != _DEFAULT and not below_mps:
        raise CompileFailed(
            "the GPU is in exclusive-process mode, so only the program can use it", code="gpu-unavailable"
        )


def _refused() -> int:
    """The number of requests that the allocator refused."""
    return int(torch.cuda.memory_stats().get("num_ooms", 0)) if torch.cuda.is_initialized() else 0


def _is_others() -> bool:
    """Whether other processes use much of the GPU's memory. If false, a compile that ran out of memory needs more than
    the whole GPU has.
    """
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved() > total * OF_OTHERS


def _full() -> CompileFailed:
    # Delete the measurements for max-autotune and for fusions: any of them may be infinite.
    for measured in (CacheBase.get_local_cache_path(), *Path(cache_dir()).glob("*/*.kernel_perf")):
        with suppress(OSError):
            measured.unlink()
    return CompileFailed("the GPU had too little free memory for the compile's measurements", code="gpu-unavailable")


def problem(message: str) -> CompileFailed | None:
    """Return the fault of the GPU or of this process, if an error's message shows one, else None."""
    try:
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - the exception's class depends on the version and on the fault
        text = str(error).partition("\n")[0]
        if _has_context():
            return CompileFailed(f"the worker lost its GPU: {text}", code="device-lost")
        return CompileFailed(f"the worker got no context on the GPU: {text}", code="gpu-unavailable")
    if (full := FULL.search(message)) and _is_others():
        return CompileFailed(full.group(), code="gpu-unavailable")
    return None


def _has_context() -> bool:
    try:
        return bool(torch._C._cuda_hasPrimaryContext(0))
    except RuntimeError:  # the device does not exist
        return False
