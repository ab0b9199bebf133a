"""Compiles for a device that cannot measure times (made_up_cuda), without basing any choice on an invented time.

Inductor measures during a compile:

- whether a matrix product is faster when padded (torch/_inductor/fx_passes/pad_mm.py)
- under max-autotune, which kernel of a library or of Triton is the fastest (torch/_inductor/select_algorithm.py)
- under max-autotune or coordinate descent, the number of parts of a kernel that reduces a tensor over its rows and
  also over its columns (codegen/simd.py, mix order)

This file replaces each of these choices by a fixed one: no padding, the library's kernel, and the number of parts that
Inductor starts with. This file counts the replaced choices. Any other measurement makes the compile fail. Nothing that
such a compile measures is cached: Inductor records a refused time as infinite, and a later compile, even one with a
GPU, would use the infinite time. Configurations of Triton kernels, including those of coordinate descent, are measured
at the first launch, in the client. So this file does not use Inductor's setting ``deterministic``. Inductor stores this
setting with each kernel, so the setting would also prevent these measurements.

Private names: torch._utils_internal.max_clock_rate, torch._inductor.config.{patch, deterministic, max_autotune,
max_autotune_gemm, max_autotune_gemm_backends, max_autotune_conv_backends, autotune_in_subproc,
pipeline_max_autotune_gemm},
torch._inductor.fx_passes.pad_mm.{should_pad, should_pad_bench_key}, torch._inductor.codegen.triton.write_atomic,
torch._inductor.codecache.{CacheBase.update_local_cache, PyCodeCache.cache_clear},
torch._inductor.runtime.coordinate_descent_tuner.CoordescTuner.autotune_single_field,
torch._inductor.select_algorithm.AlgorithmSelectorCache.__call__. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch._inductor.config as inductor

from precompiled import parts
from precompiled.core.errors import CompileFailed
from precompiled.torch_internals.patches import Patches


@dataclass
class UndecidedChoices:
    """``undecided``: the number of choices that a compile with a GPU would have measured."""

    undecided: int = 0


class _Measured(Exception):
    """Raised where padding would depend on measured times."""


@contextmanager
def choices() -> Iterator[UndecidedChoices]:
    """Replace choices that need a measured time by fixed ones, and count these choices.

    Use this for a compile whose result is kept. Raises CompileFailed if code requests a time anyway, even if the
    compile handled the error. Does nothing for the CPU, or on a device that can measure. Call this inside the program's
    configuration: the key contains that configuration but not the settings of this function.
    """
    found = UndecidedChoices()
    made_up = parts.MADE_UP_CUDA.get()
    if made_up is None or not (made_up.is_active() and torch.cuda.is_available()):
        yield found
        return
    from torch import _utils_internal
    from torch._inductor.codecache import CacheBase, PyCodeCache
    from torch._inductor.codegen import triton
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime.coordinate_descent_tuner import CoordescTuner
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    backends = (inductor.max_autotune_gemm_backends, inductor.max_autotune_conv_backends)
    chooses = {"ATEN"} != set(backends)
    # A refusal in a subprocess would count as an infinite time.
    settled: dict[str, object] = {"autotune_in_subproc": False, "pipeline_max_autotune_gemm": False}
    if not inductor.deterministic:  # in deterministic mode, torch decides without a time
        settled.update(max_autotune_gemm_backends="ATEN", max_autotune_conv_backends="ATEN")
    with Patches() as patches:
        # Torch calls should_pad_bench_key just before it measures, and only if nothing except a measurement can decide.
        patches.replace(pad_mm, "should_pad_bench_key", lambda original: _is_measured)
        patches.replace(pad_mm, "should_pad", functools.partial(_not_padded, found))
        if not inductor.deterministic:
            patches.replace(AlgorithmSelectorCache, "__call__", functools.partial(_the_only_one, found, chooses))
        patches.replace(CoordescTuner, "autotune_single_field", lambda original: staticmethod(_the_first(found)))
        # Torch 2.11 and 2.13 query nvidia-smi, which reports the host's own GPUs.
        patches.replace(_utils_internal, "max_clock_rate", lambda original: _max_clock_rate)
        # Times of fusions and combined kernels are stored beside their code (.kernel_perf), and all other times in a
        # cache.
        patches.replace(triton, "write_atomic", lambda original: _not_kept)
        patches.replace(CacheBase, "update_local_cache", lambda original: _not_kept)
        with inductor.patch(settled), made_up.compiling() as refused:
            try:
                yield found
            except Exception as error:
                if not (what := refused()):
                    raise
                raise _not_here(what) from error
            finally:
                if refused():
                    PyCodeCache.cache_clear()  # loaded kernels keep refused measurements
            if what := refused():
                raise _not_here(what)


def _not_kept(*args: object, **options: object) -> None:
    """Drop measurements, so that no other compile uses them."""


def _is_measured(*args: object, **options: object) -> str:
    raise _Measured


def _not_padded(found: UndecidedChoices, original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def should_pad(*args: object, **options: object) -> bool:
        try:
            return original(*args, **options)
        except _Measured:
            found.undecided += 1
            return False

    return should_pad


def _the_only_one(found: UndecidedChoices, chooses: bool, original: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(original)
    def select(cache: object, name: str, choices: list[Any], *args: object, **options: object) -> object:
        found.undecided += bool(chooses and (inductor.max_autotune or inductor.max_autotune_gemm))
        # The library may offer a second kernel: torch 2.11 has a further addmm with bias, and uses it only if it is
        # faster. Prefer the kernel with the usual name.
        librarys = [choice for choice in choices if choice.name == name]
        return original(cache, name, librarys or choices, *args, **options)

    return select


def _the_first(found: UndecidedChoices) -> Callable[..., int]:
    def autotune_single_field(fn: object, init_val: int, *args: object, **options: object) -> int:
        found.undecided += 1
        return init_val

    return autotune_single_field


def _max_clock_rate(device: int | None = None) -> float:
    """The clock rate in MHz."""
    return float(torch.cuda.get_device_properties(device).clock_rate / 1000)


def _not_here(what: str) -> CompileFailed:
    return CompileFailed(f"the compile needs {what}, which a made-up device cannot measure", code="made-up-device")
