"""Lets a program retain its autograd graph although the backward was compiled before its first call.

A backward may overwrite the tensors that its forward saved (donated buffers). Plain ``torch.compile`` compiles the
backward at its first call, and donates nothing if that call retains the graph. A backward that is compiled earlier
always donates buffers. AOTAutograd then raises an error at a call that retains the graph. So this file gives such a
call copies of the tensors, and hides the donated buffers from AOTAutograd.

Private names: torch._C._autograd._get_current_graph_task_keep_graph, torch._inductor.compile_fx.compile_fx_inner,
torch._functorch._aot_autograd.schemas.ViewAndMutationMeta.bw_donated_idxs, torch._guards.TracingContext.fw_metadata,
torch._inductor.output_code.CompiledFxGraph.current_callable. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._guards import TracingContext
from torch._inductor.compile_fx import compile_fx_inner


def on_copies(call: Callable[..., object], overwritten: Sequence[int]) -> Callable[..., object]:
    """Wrap ``call``, a backward that overwrites the arguments at these positions.

    If the graph is retained, pass copies.
    """

    def backward(args: list[Any]) -> object:
        if torch._C._autograd._get_current_graph_task_keep_graph():
            for at in overwritten:
                given = args[at]
                args[at] = given.clone()
                if args[at].stride() != given.stride() and 0 not in given.stride():
                    args[at] = torch.empty_strided(
                        given.size(), given.stride(), dtype=given.dtype, device=given.device
                    ).copy_(given)
        return call(args)

    return backward


def inner_compile(*args: object, **kwargs: object) -> Any:
    """Call ``compile_fx_inner`` for backwards whose graph may be retained.

    AOTAutograd's cache must be off, because the cache would not call this function.
    """
    compiled = compile_fx_inner(*args, **kwargs)
    context = TracingContext.try_get()
    if kwargs.get("is_backward") and context is not None and context.fw_metadata is not None:
        donated = context.fw_metadata.bw_donated_idxs
        if donated and getattr(compiled, "current_callable", None) is not None:
            compiled.current_callable = on_copies(compiled.current_callable, tuple(donated))
            # Clear the list in place: with tensor subclasses, a second metadata object has the same list, and each call
            # reads the list from this second object.
            donated.clear()
    return compiled
