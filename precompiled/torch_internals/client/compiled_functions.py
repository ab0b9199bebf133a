"""Finds the backend object of a function or module that torch.compile returned.

Private names: torch._dynamo.eval_frame.OptimizedModule.dynamo_ctx, torch.nn.Module._compiled_call_impl,
torch._dynamo.convert_frame.ConvertFrame._torchdynamo_orig_backend,
torch._dynamo.backends.distributed.DDPOptimizer.backend_compile_fn. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def context_of(compiled: object) -> Any:
    """Dynamo's context object of ``compiled``, or None if torch.compile did not return ``compiled``.

    Also finds the context object of a module on which the program called ``Module.compile()``.
    """
    if isinstance(compiled, torch.nn.Module):
        attributes = vars(compiled)
        return attributes.get("dynamo_ctx") or context_of(attributes.get("_compiled_call_impl"))
    cells = getattr(compiled, "__closure__", None) or ()
    return next((cell.cell_contents for cell in cells if hasattr(cell.cell_contents, "callback")), None)


def backend_of(context: Any) -> object:
    return innermost(context.callback)


def innermost(converter: object) -> object:
    """Return the backend object that torch.compile() created, without Dynamo's wrappers around this object."""
    backend = converter
    cuts = sys.modules.get("torch._dynamo.backends.distributed")  # cuts the graphs of DistributedDataParallel
    while True:
        if hasattr(backend, "_torchdynamo_orig_backend"):
            backend = backend._torchdynamo_orig_backend
        elif cuts is not None and isinstance(of := getattr(backend, "__self__", None), cuts.DDPOptimizer):
            backend = of.backend_compile_fn
        else:
            return backend
