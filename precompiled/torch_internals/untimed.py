"""A worker's compile on a device that cannot measure (a made-up one): no choice is made by a time that nobody measured.

Inductor measures in a compile whether a matrix product is quicker when it is padded
(torch/_inductor/fx_passes/pad_mm.py) and, under max-autotune, which of a library's and of Triton's kernels is the
quickest (torch/_inductor/select_algorithm.py). Both have a form without a choice, which is taken here: no padding,
and the library's kernel. What else would be measured is not compiled. The configurations of Triton's kernels, those of
coordinate descent as well, are measured where they are launched first: in the client.

Private names: torch._inductor.config.{patch, shape_padding, force_shape_pad, max_autotune_gemm_backends,
max_autotune_conv_backends}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch._inductor.config as inductor

from precompiled.core.errors import CompileFailed
from precompiled.made_up_cuda import activate


@contextmanager
def choices() -> Iterator[None]:
    """For a compile whose result is kept. Raises CompileFailed where something asked for a time all the same, also
    where the compile itself took the error for an answer. Does nothing where times can be measured.

    Within the program's configuration: the key has that, and not what is set here.
    """
    if not activate.is_active():
        yield
        return
    settled: dict[str, Any] = {"max_autotune_gemm_backends": "ATEN", "max_autotune_conv_backends": "ATEN"}
    if not inductor.force_shape_pad:  # which pads without a look at times
        settled["shape_padding"] = False
    with inductor.patch(settled), activate.compiling() as refused:
        try:
            yield
        except Exception as error:
            if not (what := refused()):
                raise
            raise _not_here(what) from error
        if what := refused():
            raise _not_here(what)


def _not_here(what: str) -> CompileFailed:
    return CompileFailed(f"the compile asked a made-up device for {what}", code="made-up-device")
