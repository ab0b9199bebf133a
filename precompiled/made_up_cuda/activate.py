"""Loads the made-up device into this process, before torch.

Callers: the hook (bootstrap.py), a worker before it imports torch (compiler/), and a ``.pth`` file (host.py) in tests
whose clients have no hook. The library must be in the global scope when torch's libraries are loaded, because torch
would otherwise bind to CUDA's own library.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NVML, _CUDA = "libnvidia-ml.so.1", "libcuda.so.1"
_library: ctypes.CDLL | None = None


def activate() -> None:
    """Load the device, if CUDA_MADE_UP names one and torch is installed. Idempotent.

    Ends the process (SystemExit) if the device cannot be provided.
    """
    global _library  # noqa: PLW0603
    if not is_active() or _library is not None:
        return
    if "torch" in sys.modules:
        raise SystemExit("made-up CUDA: torch was imported before the made-up device")
    from precompiled.made_up_cuda.build import CannotBuild, NoTorch, build

    try:
        ready = build(_say)
    except NoTorch:
        return
    except CannotBuild as error:
        raise SystemExit(f"made-up CUDA: {error}. {error.action}") from None
    ctypes.CDLL(str(ready / _NVML))  # once loaded, it is found by its name
    _library = ctypes.CDLL(str(ready / _CUDA), mode=ctypes.RTLD_GLOBAL)
    os.environ["TRITON_LIBCUDA_PATH"] = str(ready)  # where triton looks for the library to link its launcher with


def in_a_worker() -> None:
    """Load the device in a worker. This process and its children only compile for the device, and run nothing on it.

    torch's processes that compile kernels (torch/_inductor/compile_worker) query Triton for the kind of GPU. These
    processes run torch's own command without our code, so they get the device by LD_PRELOAD.
    """
    activate()
    if _library is None:
        return
    _library.made_up_cuda_compiling(1)
    os.environ["CUDA_MADE_UP_COMPILING"] = "1"
    # Put the libraries' own paths into LD_PRELOAD, because a folder in LD_LIBRARY_PATH would change the keys of graphs.
    ready = os.environ["TRITON_LIBCUDA_PATH"]
    if set(ready) & {" ", ":"}:  # they separate paths in LD_PRELOAD (ld.so(8))
        _say(f"{ready} has a blank or a colon: torch 2.11 cannot compile kernels in separate processes")
        return
    paths = [f"{ready}/{name}" for name in (_NVML, _CUDA)]
    os.environ["LD_PRELOAD"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("LD_PRELOAD")])])


def _say(text: str) -> None:
    print(f"precompiled: {text}", file=sys.stderr, flush=True)  # noqa: T201


def is_active() -> bool:
    """Whether this process's CUDA devices are simulated."""
    return bool(os.environ.get("CUDA_MADE_UP"))


@contextmanager
def compiling() -> Iterator[Callable[[], str]]:
    """Inside the block, treat this process as a compile: measuring times and running kernels are errors.

    Yields a function that returns the name of the first call that the device refused, or "". Some errors do not reach
    the compiler.
    """
    library = ctypes.CDLL(_CUDA)
    library.made_up_cuda_refused.restype = ctypes.c_char_p
    before = library.made_up_cuda_compiling(1)
    try:
        yield lambda: library.made_up_cuda_refused().decode()
    finally:
        library.made_up_cuda_compiling(before)
