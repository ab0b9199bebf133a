"""Replaces parts of Triton's interpreter in this process, and counts the kernels that it runs.

With TRITON_INTERPRET=1, ``triton.jit`` returns functions that numpy computes, one kernel program after another
(triton/runtime/interpreter.py). Inductor then ignores an artifact's cubins: ``AsyncCompile.triton`` executes the
kernel's source, and ``CachingAutotuner.run`` calls the kernel with its first configuration
(torch/_inductor/runtime/triton_heuristics.py). The interpreter copies arguments to the CPU and back.

This file adds:
- libdevice's functions, which return None in the interpreter
- a check that each access lies in the memory of an argument
- a count of kernel instances and stores, which proves that a kernel was executed

Private names, checked on torch 2.15.0 with triton 3.9.0: triton.runtime.interpreter.{GridExecutor.__call__,
GridExecutor._init_args_hst, InterpreterBuilder.{set_grid_idx, create_masked_load, create_masked_store,
create_atomic_rmw, create_atomic_cas, create_extern_elementwise}, interpreter_builder, interpreter_semantic,
TensorHandle, _get_np_dtype}, triton.language.extra.{libdevice, cuda.libdevice},
torch._inductor.async_compile.{AsyncCompile.triton, CompiledTritonKernels.get},
torch._inductor.runtime.hints.HeuristicType, torch._inductor.runtime.triton_heuristics.CachingAutotuner.{configs,
heuristic_type, triton_meta}.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import triton
from torch._inductor.async_compile import AsyncCompile, CompiledTritonKernels
from torch._inductor.runtime.hints import HeuristicType
from triton.language.extra import libdevice as declared
from triton.language.extra.cuda import libdevice as of_cuda
from triton.runtime import interpreter

from benchmarks.harness import fresh_memory
from benchmarks.interpreter import libdevice


class OutsideOfArguments(Exception):
    """A kernel accessed memory outside of its arguments, so the kernel is wrong."""


@dataclass
class Kernel:
    """One kernel of an artifact."""

    name: str
    brought: bool = False  # the artifact has machine code and a launcher for this source
    runs: int = 0
    programs: int = 0
    stored: int = 0  # number of elements
    error: str = ""


@dataclass
class Seen:
    """The kernels that artifacts contained and that the interpreter ran, since ``SEEN.clear()``."""

    kernels: dict[str, Kernel] = field(default_factory=dict)  # maps the digest of a kernel's source to the kernel
    strangers: list[str] = field(default_factory=list)  # executed kernels that are in no artifact
    running: Kernel | None = None
    # Address ranges of the running kernel's arguments.
    memory: list[tuple[int, int]] = field(default_factory=list)

    def clear(self) -> None:
        self.kernels.clear()
        self.strangers.clear()


SEEN = Seen()
_of_file: dict[str, str] = {}  # maps the file of a kernel's code to the digest of its source


def install() -> None:
    """Replace the functions. The process must have started with TRITON_INTERPRET=1; raises RuntimeError otherwise."""
    if not triton.knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET=1 must be set before triton is imported")
    _install_libdevice()
    _install_accesses()
    AsyncCompile.triton = _noted(AsyncCompile.triton)
    interpreter.GridExecutor.__call__ = _counted(interpreter.GridExecutor.__call__)
    interpreter.GridExecutor._init_args_hst = _ranged(interpreter.GridExecutor._init_args_hst)
    fresh_memory.fill(255)  # NaN: an element that no kernel writes is never right by chance


def _noted(load: Callable[..., Any]) -> Callable[..., Any]:
    def triton_kernel(self: Any, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:
        digest = hashlib.sha256(source_code.encode()).hexdigest()[:16]
        kernel_of_source = SEEN.kernels.setdefault(digest, Kernel(kernel_name))
        kernel_of_source.brought |= CompiledTritonKernels.get(source_code) is not None
        try:
            kernel = load(self, kernel_name, source_code, device_str)
        except Exception as error:
            kernel_of_source.error = reason(error)
            raise
        if not isinstance(kernel.fn, interpreter.InterpretedFunction):
            raise RuntimeError(f"{kernel_name} would not be interpreted: {type(kernel.fn).__name__}")
        _of_file[inspect.getfile(kernel.fn.fn)] = digest
        _give_constants(kernel)
        return kernel

    return triton_kernel


def _give_constants(kernel: Any) -> None:
    """Add the constants of a user's kernel to its configuration.

    Inductor's interpreted launch takes constants only from the configuration. If a constant is missing in the
    configuration, the launch computes the grid from the wrong arguments.
    """
    if kernel.heuristic_type is not HeuristicType.USER_AUTOTUNE:
        return
    signature = kernel.triton_meta["signature"]
    names = [*signature]
    for key, value in kernel.triton_meta["constants"].items():
        at = key[0] if isinstance(key, tuple) else key
        name = names[at] if isinstance(at, int) else at
        if signature.get(name) == "constexpr":
            kernel.configs[0].kwargs.setdefault(name, value)


def _counted(execute: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        name, digest = self.fn.__name__, _of_file.get(inspect.getfile(self.fn))
        if digest is None:
            SEEN.strangers.append(name)
            return execute(self, *args, **kwargs)
        kernel = SEEN.running = SEEN.kernels.setdefault(digest, Kernel(name))
        try:
            result = execute(self, *args, **kwargs)
        except Exception as error:
            kernel.error = reason(error)
            raise
        else:
            kernel.runs += 1
            return result
        finally:
            SEEN.running = None

    return call


def reason(error: BaseException) -> str:
    """Return the root cause of an interpreter error as one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def _ranged(to_host: Callable[..., Any]) -> Callable[..., Any]:
    def init_args(self: Any, args: Any, kwargs: Any) -> Any:
        on_host, named = to_host(self, args, kwargs)
        SEEN.memory = [
            (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
            for value in (*on_host, *named.values())
            if isinstance(value, torch.Tensor)
            for storage in [value.untyped_storage()]
        ]
        return on_host, named

    return init_args


def _within(pointers: Any, mask: Any) -> int:
    """Check the accesses of one instruction and return their number of elements."""
    mask = np.broadcast_to(mask.data, pointers.data.shape)
    addresses = pointers.data[mask]
    if SEEN.running is None or not addresses.size:
        return 0
    width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
    inside = np.zeros(addresses.shape, bool)
    for begin, end in SEEN.memory:
        inside |= (addresses >= begin) & (addresses + np.uint64(width) <= end)
    if not inside.all():
        raise OutsideOfArguments(f"{int((~inside).sum())} of {inside.size} elements are outside of all arguments")
    return int(addresses.size)


def _install_accesses() -> None:
    builder = interpreter.InterpreterBuilder
    set_grid, load, store = builder.set_grid_idx, builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas

    def set_grid_idx(self: Any, x: int, y: int, z: int) -> Any:
        if SEEN.running is not None:
            SEEN.running.programs += 1
        return set_grid(self, x, y, z)

    def create_masked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        _within(ptrs, mask)
        return load(self, ptrs, mask, *rest)

    def create_masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        _stored(_within(ptrs, mask))
        return store(self, ptrs, value, mask, *rest)

    def create_atomic_rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, *rest: Any) -> Any:
        _stored(_within(ptr, mask))
        return rmw(self, op, ptr, val, mask, *rest)

    def create_atomic_cas(self: Any, ptr: Any, *rest: Any) -> Any:
        _stored(_within(ptr, interpreter.TensorHandle(np.ones_like(ptr.data, dtype=bool), triton.language.int1)))
        return cas(self, ptr, *rest)

    for replacement in (set_grid_idx, create_masked_load, create_masked_store, create_atomic_rmw, create_atomic_cas):
        setattr(builder, replacement.__name__, replacement)


def _stored(elements: int) -> None:
    if SEEN.running is not None:
        SEEN.running.stored += elements


def _install_libdevice() -> None:
    asked: list[str] = []

    def create_extern_elementwise(
        self: Any, library: Any, path: Any, symbol: str, arguments: list[Any], kind: Any, pure: bool
    ) -> Any:
        scalar = kind.scalar
        found = libdevice.evaluate(asked[-1], [value.data for value in arguments], interpreter._get_np_dtype(scalar))
        return interpreter.TensorHandle(found, scalar)

    interpreter.InterpreterBuilder.create_extern_elementwise = create_extern_elementwise

    def served(name: str, *arguments: Any) -> Any:
        asked.append(name)
        try:
            # CUDA's declaration raises an error for a type that libdevice does not support.
            return getattr(of_cuda, name)(*arguments, _semantic=interpreter.interpreter_semantic)
        finally:
            asked.pop()

    for name, function in vars(declared).items():
        if inspect.isfunction(function) and hasattr(of_cuda, name):
            setattr(declared, name, functools.partial(served, name))
