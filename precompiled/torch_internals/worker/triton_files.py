"""What an artifact keeps of the files that Triton wrote for a kernel: its machine code and its metadata.

Inductor's bundle (torch/_inductor/triton_bundler.py) has all of Triton's cache entry. Four fifths of it are texts that
a compile writes for people: the source, Triton's, LLVM's and PTX. A client reads the machine code where a static
launcher loads the kernel, and the metadata as well where Triton does (triton/compiler/compiler.py, CompiledKernel).
Triton lists the files of an entry in one more, its *group* (triton/runtime/cache.py, put_group). Triton 3.9 builds the
kernel again where one that is listed is not there, so the texts leave the list, too.

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
    """Of a ``CompiledFxGraph``'s kernels, in place."""
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


def _listed(file: Any) -> Any:
    """A ``TritonKernelArtifact``; a group without the files that are not kept."""
    if not file.filename.startswith("__grp__"):
        return file
    group = json.loads(file.payload)
    children = {name: path for name, path in group["child_paths"].items() if _is_kept(name)}
    return replace(file, payload=json.dumps({**group, "child_paths": children}).encode())
