"""A worker's compile for a GPU, such that a client that loads it starts no compiler.

torch launches a kernel of Inductor's by itself, without Triton, where it has put the kernel's *static launcher* into
the bundle (torch/_inductor/triton_bundler.py, put_static_autotuner). Two things keep launchers out of it, and each
process that loads the bundle then asks Triton for the kernel, which asks ptxas for its version, or builds it again:

- *A long name.* Triton cuts the names of its files at 150 characters, Inductor looks for the whole one
  (triton/compiler/compiler.py, compile; triton_heuristics.py, can_statically_launch). So names are cut here, as torch
  itself does on Windows; Inductor adds a number to each.
- *A reduction's smaller block.* Where a looped reduction takes more registers than the GPU has for full occupancy,
  torch compiles it once more, with half the block (triton_heuristics.py, _dynamic_scale_rblock). It can tell only after
  it has loaded the kernel, and by then it has put the launcher aside. So that launcher is given what the look added,
  and is told that it was taken: the artifact's key has the GPU's properties, by which torch decides.

And one thing keeps machine code out of it: since 2.13, where anything was measured in a compile (max-autotune), the
bundle has the code of what was found the quickest, and of nothing else (TritonBundler.put_winner, collect). The kernels
around it were never run here. So no winner is told.

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

# With Inductor's own "triton_split_scan_" before it and a number behind, well within Triton's 150.
LONGEST_NAME = 110


@contextmanager
def kept() -> Iterator[None]:
    """For one compile. Does nothing where no kernel of Triton's can be loaded."""
    if not torch.cuda.is_available():
        yield
        return
    # Imports that a compile for a GPU needs anyway.
    import torch._inductor.codegen.triton as codegen
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.triton_bundler import TritonBundler

    patches, launchers = Patches(), _Launchers()
    try:
        patches.replace(codegen, "get_fused_kernel_name", _cut)
        patches.replace(TritonBundler, "put_static_autotuner", launchers.put)
        patches.replace(CachingAutotuner, "_dynamic_scale_rblock", launchers.scale)
        if hasattr(TritonBundler, "put_winner"):  # not in 2.11
            patches.replace(TritonBundler, "put_winner", lambda original: lambda kernel_hash: None)
        yield
    finally:
        patches.undo()


def _cut(original: Callable[..., str]) -> Callable[..., str]:
    def get_fused_kernel_name(*args: Any, **options: Any) -> str:
        return original(*args, **options)[:LONGEST_NAME].rstrip("_")

    return get_fused_kernel_name


class _Launchers:
    """What was put aside for the artifact, by the kernel of which it is a copy."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Any, Any]] = {}  # by id, which stays the kernel's own while that is held here

    def put(self, original: Callable[[str, Any], None]) -> Callable[[str, Any], None]:
        from torch._inductor.triton_bundler import TritonBundler

        def put_static_autotuner(key: str, kernel: Any) -> None:
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
                # Before they are loaded: then they hold handles of this process, and no longer their file's name.
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
