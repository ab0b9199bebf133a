"""A worker's compile on a device that cannot measure (a made-up one): no choice is made by a time that nobody measured.

Inductor measures in a compile whether a matrix product is quicker when it is padded
(torch/_inductor/fx_passes/pad_mm.py); under max-autotune, which of a library's and of Triton's kernels is the quickest
(torch/_inductor/select_algorithm.py); and under that and coordinate descent, in how many parts a reduction over rows
and columns is best done (codegen/simd.py, mix order). Each has a form without a choice, which is taken here: no
padding, the library's kernel, the parts that Inductor begins with; and it is noted that there was one. What else would
be measured is not compiled, and Inductor keeps nothing of it: a time that was refused is infinite for it, and the next
compile, also one beside a GPU, would believe it. The configurations of Triton's kernels, those of coordinate descent as
well, are measured where they are launched first: in the client.

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

from precompiled.core.errors import CompileFailed
from precompiled.made_up_cuda import activate
from precompiled.torch_internals.patches import Patches


@dataclass
class Choices:
    """How many were left undecided: what a compile beside a GPU would have measured."""

    undecided: int = 0


class _Measured(Exception):
    """Whether to pad depends on times."""


@contextmanager
def choices() -> Iterator[Choices]:
    """For a compile whose result is kept. Raises CompileFailed where something asked for a time all the same, also
    where the compile itself took the error for an answer. Does nothing where times can be measured, and for a CPU.

    Within the program's configuration: the key has that, and not what is set here.
    """
    found = Choices()
    if not (activate.is_active() and torch.cuda.is_available()):
        yield found
        return
    from torch import _utils_internal
    from torch._inductor.codecache import CacheBase, PyCodeCache
    from torch._inductor.codegen import triton
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime.coordinate_descent_tuner import CoordescTuner
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    patches, backends = Patches(), (inductor.max_autotune_gemm_backends, inductor.max_autotune_conv_backends)
    chooses = {"ATEN"} != set(backends)
    # What another process is refused is an infinite time here, and an answer.
    settled: dict[str, Any] = {"autotune_in_subproc": False, "pipeline_max_autotune_gemm": False}
    if not inductor.deterministic:  # which takes its choice without a time
        settled.update(max_autotune_gemm_backends="ATEN", max_autotune_conv_backends="ATEN")
    try:
        # Asked for where nothing else decides, just before it is measured.
        patches.replace(pad_mm, "should_pad_bench_key", lambda original: _is_measured)
        patches.replace(pad_mm, "should_pad", functools.partial(_not_padded, found))
        if not inductor.deterministic:
            patches.replace(AlgorithmSelectorCache, "__call__", functools.partial(_the_only_one, found, chooses))
        patches.replace(CoordescTuner, "autotune_single_field", lambda original: staticmethod(_the_first(found)))
        # torch 2.11 and 2.13 ask nvidia-smi, which is of the host's own GPUs.
        patches.replace(_utils_internal, "max_clock_rate", lambda original: _max_clock_rate)
        # Times of fusions and of combined kernels, beside their code (.kernel_perf); of choices, in the local cache.
        patches.replace(triton, "write_atomic", lambda original: _not_kept)
        patches.replace(CacheBase, "update_local_cache", lambda original: _not_kept)
        with inductor.patch(settled), activate.compiling() as refused:
            try:
                yield found
            except Exception as error:
                if not (what := refused()):
                    raise
                raise _not_here(what) from error
            finally:
                if refused():
                    PyCodeCache.cache_clear()  # kernels that are loaded know what they were told
            if what := refused():
                raise _not_here(what)
    finally:
        patches.undo()


def _not_kept(*args: Any, **options: Any) -> None:
    """Nothing is measured here that another compile may have."""


def _is_measured(*args: Any, **options: Any) -> str:
    raise _Measured


def _not_padded(found: Choices, original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def should_pad(*args: Any, **options: Any) -> bool:
        try:
            return original(*args, **options)
        except _Measured:
            found.undecided += 1
            return False

    return should_pad


def _the_only_one(found: Choices, chooses: bool, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def select(cache: Any, name: str, choices: list[Any], *args: Any, **options: Any) -> Any:
        found.undecided += bool(chooses and (inductor.max_autotune or inductor.max_autotune_gemm))
        # The library may have two: torch 2.11 has an addmm of a bias as well, which it takes only where it is quicker.
        librarys = [choice for choice in choices if choice.name == name]
        return original(cache, name, librarys or choices, *args, **options)

    return select


def _the_first(found: Choices) -> Callable[..., int]:
    def autotune_single_field(fn: Any, init_val: int, *args: Any, **options: Any) -> int:
        found.undecided += 1
        return init_val

    return autotune_single_field


def _max_clock_rate(device: int | None = None) -> float:
    """In MHz."""
    return float(torch.cuda.get_device_properties(device).clock_rate / 1000)


def _not_here(what: str) -> CompileFailed:
    return CompileFailed(f"the compile asked a made-up device for {what}", code="made-up-device")
