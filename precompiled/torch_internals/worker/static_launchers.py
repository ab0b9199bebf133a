"""Makes a worker's compile for a GPU complete, so that a client that loads the artifact starts no compiler.

Torch launches an Inductor kernel itself, without Triton, if the bundle contains the kernel's *static launcher*
(torch/_inductor/triton_bundler.py, put_static_autotuner). If the launcher is missing, each process that loads the
bundle requests the kernel from Triton. Triton then runs ptxas to read its version, or rebuilds the kernel. Two things
keep launchers out of the bundle:

- *A long name.* Triton cuts the names of its files at 150 characters, but Inductor looks for the full name
  (triton/compiler/compiler.py, compile; triton_heuristics.py, can_statically_launch). So this file shortens names, as
  torch does on Windows. Inductor adds a number to each name, so shortened names stay distinct.
- *A smaller block for a reduction.* If a looped reduction needs more registers than the GPU has for full occupancy,
  torch compiles the kernel again with half the block size (triton_heuristics.py, _dynamic_scale_rblock). Torch
  recompiles after loading the kernel, when it has already stored the launcher. So this file adds the second result to
  the stored launcher and marks the decision as made. The decision depends on properties of the GPU, which are in the
  key.

One thing keeps machine code out of the bundle. Since torch 2.13, if a compile measured anything (max-autotune), the
bundle contains only the code of the fastest choices (TritonBundler.put_winner, collect). The graph's other kernels
never run in the worker, so they have no fastest choice, and their code would be missing. Therefore this file replaces
``put_winner``, so that no choice counts as the fastest.

Private names: torch._inductor.codegen.triton.get_fused_kernel_name,
torch._inductor.runtime.triton_heuristics.CachingAutotuner.{_dynamic_scale_rblock, _make_launchers, compile_results,
inductor_meta, is_statically_launchable, prepare_for_caching},
torch._inductor.triton_bundler.TritonBundler.{put_static_autotuner, put_winner, _static_autotuners}.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from precompiled.torch_internals.patches import Patches

# This limit leaves room for Inductor's prefix "triton_split_scan_" and a number within Triton's 150 characters.
LONGEST_NAME = 110


@contextmanager
def kept() -> Iterator[None]:
    """Apply the patches for one compile. Does nothing without a CUDA device."""
    if not torch.cuda.is_available():
        yield
        return
    # These modules are imported here, because only a compile for a GPU needs them.
    import torch._inductor.codegen.triton as codegen
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.triton_bundler import TritonBundler

    launchers = _Launchers()
    with Patches() as patches:
        patches.replace(codegen, "get_fused_kernel_name", _cut)
        patches.replace(TritonBundler, "put_static_autotuner", launchers.put)
        patches.replace(CachingAutotuner, "_dynamic_scale_rblock", launchers.scale)
        if hasattr(TritonBundler, "put_winner"):  # torch 2.11 does not have it
            patches.replace(TritonBundler, "put_winner", lambda original: lambda kernel_hash: None)
        yield


def _cut(original: Callable[..., str]) -> Callable[..., str]:
    def get_fused_kernel_name(*args: object, **options: object) -> str:
        return original(*args, **options)[:LONGEST_NAME].rstrip("_")

    return get_fused_kernel_name


class _Launchers:
    """The launchers that were stored for the artifact, by the ids of the kernels that they copy."""

    def __init__(self) -> None:
        # the keys are ids of kernels; the reference to a kernel keeps its id from being reused
        self._of: dict[int, tuple[Any, Any]] = {}

    def put(self, original: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
        from torch._inductor.triton_bundler import TritonBundler

        def put_static_autotuner(key: str, kernel: object) -> None:
            original(key, kernel)
            if TritonBundler._static_autotuners:
                self._of[id(kernel)] = kernel, TritonBundler._static_autotuners[-1].kernel

        return put_static_autotuner

    def scale(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def _dynamic_scale_rblock(kernel: Any) -> None:
            _, aside = self._of.pop(id(kernel), (None, None))
            if aside is None:
                original(kernel)
                return
            number, make = len(kernel.compile_results), kernel._make_launchers

            def _make_launchers() -> None:
                # Copy the kernel before its results are loaded, because loaded results contain handles of this process,
                # not file names.
                if kernel.is_statically_launchable():
                    aside.compile_results += copy.deepcopy(kernel.compile_results[number:])
                    aside.prepare_for_caching()
                    aside.inductor_meta["dynamic_scale_rblock"] = False
                make()

            kernel._make_launchers = _make_launchers
            try:
                original(kernel)
            finally:
                del kernel._make_launchers

        return _dynamic_scale_rblock
