"""In a worker: the memory of a GPU is that of the user's programs, of which one waits for what the worker compiles.

So a worker keeps its context alone between two jobs. And a GPU that is full is no word about a graph: a worker that
finds no memory there, not even for a context, leaves the graph to the process that asked. Where only a part of what a
compile wanted to measure was refused memory by PyTorch's allocator, torch goes on without it, as if it were the slowest
(torch/_inductor/select_algorithm.py, benchmark_choices), and keeps that for the next compile: nothing is published
then, and nothing kept, unless the GPU was this compile's own. Where it is not, a compile may take half of what is free,
so that what it measures is refused memory before a step of the program's is.

In exclusive-process mode the first process that makes a context has the GPU to itself. That must not be a worker, which
stays: the next program would find no GPU. Below MPS all processes are one.

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

OF_OTHERS = 0.25  # of a GPU's memory: a context takes far less
OF_FREE = 0.5  # for a compile beside others
_COMPUTE_MODE, _DEFAULT = 20, 0  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT
_MPS = "/tmp/nvidia-mps"


@contextmanager
def given_back() -> Iterator[None]:
    """Collect a compile's objects at its end (docs/decisions/0014), and free the GPU memory that it has allocated.

    Raises CompileFailed where there was too little of it, also where the compile itself took that for an answer; and
    where the GPU is one process's alone.
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
            torch._C._cuda_clearCublasWorkspaces()  # blocks of the allocator that are in use until somebody says so
            torch.cuda.empty_cache()


def refuse_exclusive() -> None:
    """Raise CompileFailed where the GPU is one process's alone. Makes no context there."""
    driver = ctypes.CDLL("libcuda.so.1")  # asked without a context; an error leaves what is there
    device, mode = ctypes.c_int(0), ctypes.c_int(_DEFAULT)
    driver.cuInit(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetAttribute(ctypes.byref(mode), _COMPUTE_MODE, device)
    below_mps = os.path.exists(os.path.join(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS), "control"))
    if mode.value != _DEFAULT and not below_mps:
        raise CompileFailed("the GPU is in exclusive-process mode, and is left to the program", code="gpu-unavailable")


def _refused() -> int:
    """How often the allocator had no memory to give."""
    return int(torch.cuda.memory_stats().get("num_ooms", 0)) if torch.cuda.is_initialized() else 0


def _is_others() -> bool:
    """Whether much of the memory is other processes'. What finds no room on an empty GPU finds none anywhere."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved() > total * OF_OTHERS


def _full() -> CompileFailed:
    # What was measured for max-autotune, and for fusions: any of it may be infinite.
    for measured in (CacheBase.get_local_cache_path(), *Path(cache_dir()).glob("*/*.kernel_perf")):
        with suppress(OSError):
            measured.unlink()
    return CompileFailed("the GPU's memory was too full for what the compile measures there", code="gpu-unavailable")


def problem(message: str) -> CompileFailed | None:
    """What is wrong with this process's GPU, after an error with this message; None: nothing."""
    try:
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - of several classes, by the version and by what is lost
        text = str(error).partition("\n")[0]
        if _has_context():
            return CompileFailed(f"the worker's GPU cannot be used any more: {text}", code="device-lost")
        return CompileFailed(f"the worker got no context on the GPU: {text}", code="gpu-unavailable")
    if (full := FULL.search(message)) and _is_others():
        return CompileFailed(full.group(), code="gpu-unavailable")
    return None


def _has_context() -> bool:
    try:
        return bool(torch._C._cuda_hasPrimaryContext(0))
    except RuntimeError:  # there is no such device
        return False
