"""What an artifact keeps of the files that Triton wrote for a kernel: its machine code and its metadata.

Inductor's bundle (torch/_inductor/triton_bundler.py) has all of Triton's cache entry. Four fifths of it are texts that
a compile writes for people: the source, Triton's, LLVM's and PTX. A client reads the machine code where a static
launcher loads the kernel, and the metadata as well where Triton does (triton/compiler/compiler.py, CompiledKernel); to
Triton, a file that a group does not have is no error (triton/runtime/cache.py, get_group).

Private names: torch._inductor.output_code.CompiledFxGraph._triton_bundle,
torch._inductor.triton_bundler.{TritonBundle, TritonKernelArtifacts}, torch._inductor.utils.GPU_KERNEL_BIN_EXTS.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from torch._inductor.utils import GPU_KERNEL_BIN_EXTS


def drop_texts(graph: Any) -> None:
    """Of a ``CompiledFxGraph``'s kernels, in place."""
    bundle = graph._triton_bundle
    if bundle is None:
        return
    kept = {".json", *GPU_KERNEL_BIN_EXTS.values()}
    graph._triton_bundle = replace(
        bundle,
        kernel_artifacts=[
            replace(kernel, artifacts=[file for file in kernel.artifacts if os.path.splitext(file.filename)[1] in kept])
            for kernel in bundle.kernel_artifacts
        ],
    )
