"""Drops from an artifact those files of Triton kernels that it does not need, and keeps machine code and metadata.

Inductor's bundle (torch/_inductor/triton_bundler.py) contains each kernel's whole entry of Triton's cache. Four fifths
of an entry are texts that only people read: the source, Triton's IR, LLVM IR and PTX. A client reads the machine code
if a static launcher loads the kernel, and also the metadata if Triton loads the kernel (triton/compiler/compiler.py,
CompiledKernel). An entry also has a list of its files, the *group* (triton/runtime/cache.py, put_group). Triton 3.9
rebuilds a kernel if a listed file is missing, so the texts are removed from the list.

Private names: torch._inductor.output_code.CompiledFxGraph._triton_bundle,
torch._inductor.triton_bundler.{TritonBundle, TritonKernelArtifact, TritonKernelArtifacts},
torch._inductor.utils.GPU_KERNEL_BIN_EXTS.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from torch._inductor.utils import GPU_KERNEL_BIN_EXTS

_KEPT = frozenset({".json", *GPU_KERNEL_BIN_EXTS.values()})


def drop_texts(graph: Any) -> None:
    """Drop the texts of a ``CompiledFxGraph``'s kernels, in place."""
    bundle = graph._triton_bundle
    if bundle is None:
        return
    graph._triton_bundle = replace(
        bundle,
        kernel_artifacts=[
            replace(kernel, artifacts=[_listed(file) for file in kernel.artifacts if _is_kept(file.filename)])
            for kernel in bundle.kernel_artifacts
        ],
    )


def _is_kept(name: str) -> bool:
    return os.path.splitext(name)[1] in _KEPT


def _listed(file: Any) -> object:
    """Return a ``TritonKernelArtifact`` (a file of a kernel). If the file is a group, remove the dropped files from its
    list.
    """
    if not file.filename.startswith("__grp__"):
        return file
    group = json.loads(file.payload)
    children = {name: path for name, path in group["child_paths"].items() if _is_kept(name)}
    return replace(file, payload=json.dumps({**group, "child_paths": children}).encode())
