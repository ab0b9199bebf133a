"""In a client: where it keeps what it has measured of the configurations of an artifact's Triton kernels.

Inductor measures them where a kernel is launched first, and writes which was the quickest beside the kernel's source
(torch/_inductor/runtime/autotune_cache.py). In an artifact that is the folder of the worker that compiled it: a folder
of another user, of another host or of an image, where a client could not write, and its step would raise. So the source
is taken to lie among the client's own files of Inductor, where plain torch.compile has it.

Private names: torch._inductor.output_code.CompiledFxGraph._triton_bundle,
torch._inductor.triton_bundler.TritonBundle.static_autotuners,
torch._inductor.runtime.triton_heuristics.CachingAutotuner.{filename, save_cache_hook},
torch._inductor.runtime.autotune_cache.AutotuneCache.local_cache, torch._inductor.codecache.get_path.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import os
from typing import Any

from torch._inductor.codecache import get_path


def keep_here(code: Any) -> None:
    """A ``CompiledFxGraph`` that is loaded, in place."""
    bundle = code._triton_bundle
    for launched in bundle.static_autotuners if bundle is not None else ():
        kernel = launched.kernel
        if kernel.filename is None:
            continue
        _, folder, kernel.filename = get_path(os.path.splitext(os.path.basename(kernel.filename))[0], "py")
        if kernel.save_cache_hook is None:
            continue
        cache = kernel.save_cache_hook.__self__
        if cache.local_cache is not None:
            store, path = cache.local_cache
            cache.local_cache = store, os.path.join(folder, os.path.basename(path))
