"""Redirects the autotuning results of a loaded artifact's Triton kernels to the client's own Inductor cache.

Inductor measures the configurations of a kernel at the kernel's first launch, and writes the fastest one beside the
kernel's source (torch/_inductor/runtime/autotune_cache.py). For a kernel of an artifact, the source is in the folder of
the worker that compiled the kernel. A worker's folder may belong to another user, another host or an image, so a write
would fail and the client's step would raise. So this file sets the kernel's path to the client's own cache folder, as
plain torch.compile does.

A stored result is valid only for the configurations that were measured, so a kernel's cache object contains their hash.
A worker creates this object before it adds a configuration (static_launchers.py), so this file creates the object
again.

Private names: torch._inductor.output_code.CompiledFxGraph._triton_bundle,
torch._inductor.triton_bundler.TritonBundle.static_autotuners,
torch._inductor.runtime.triton_heuristics.hash_configs,
torch._inductor.runtime.triton_heuristics.CachingAutotuner.{filename, save_cache_hook, compile_results, inductor_meta},
torch._inductor.runtime.autotune_cache.AutotuneCache.{create, save}, torch._inductor.codecache.get_path.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import os
from typing import Any

from torch._inductor.codecache import get_path


def keep_here(code: Any) -> None:
    """Redirect the autotuning results of the kernels of ``code``, a loaded ``CompiledFxGraph``. Changes ``code``."""
    bundle = code._triton_bundle
    if bundle is None or not bundle.static_autotuners:
        return
    from torch._inductor.runtime.autotune_cache import AutotuneCache
    from torch._inductor.runtime.triton_heuristics import hash_configs

    for launched in bundle.static_autotuners:
        kernel = launched.kernel
        if kernel.filename is None:
            continue
        _, _, kernel.filename = get_path(os.path.splitext(os.path.basename(kernel.filename))[0], "py")
        if kernel.inductor_meta.get("force_disable_caches"):
            kernel.save_cache_hook = None
            continue
        configs = [result.config for result in kernel.compile_results]
        cache = AutotuneCache.create(kernel.inductor_meta, kernel.filename, hash_configs(configs))
        kernel.save_cache_hook = cache and cache.save
