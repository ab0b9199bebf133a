"""In a client: where it keeps what it has measured of the configurations of an artifact's Triton kernels.

Inductor measures them where a kernel is launched first, and writes which was the quickest beside the kernel's source
(torch/_inductor/runtime/autotune_cache.py). In an artifact that is the folder of the worker that compiled it: a folder
of another user, of another host or of an image, where a client could not write, and its step would raise. So the source
is taken to lie among the client's own files of Inductor, where plain torch.compile has it.

What is kept is found again for the same configurations. Those of an artifact are not always those that the kernel had
when its cache was made: a worker adds a reduction's smaller block (static_launchers.py). So the cache is made anew.

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
    """A ``CompiledFxGraph`` that is loaded, in place."""
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
