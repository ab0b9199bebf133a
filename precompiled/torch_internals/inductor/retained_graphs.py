"""Backwards that were compiled ahead of their first call, and a program that retains its graph.

A backward may overwrite what its forward has saved (donated buffers). Plain ``torch.compile`` compiles it at its first
call, and where that call retains the graph it overwrites nothing. Compiled ahead it cannot know, and AOTAutograd
refuses a later call that retains the graph, by an error. So such a call gets copies here, and AOTAutograd has no reason
to refuse it.

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


def on_copies(call: Callable[..., Any], overwritten: Sequence[int]) -> Callable[..., Any]:
    """``call``, a backward that overwrites these arguments, on copies of them where the graph is retained."""

    def backward(args: list[Any]) -> Any:
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


def inner_compile(*args: Any, **kwargs: Any) -> Any:
    """``compile_fx_inner``, whose backwards may be retained. Not below AOTAutograd's cache, which does not call it."""
    compiled = compile_fx_inner(*args, **kwargs)
    context = TracingContext.try_get()
    if kwargs.get("is_backward") and context is not None and context.fw_metadata is not None:
        donated = context.fw_metadata.bw_donated_idxs
        if donated and getattr(compiled, "current_callable", None) is not None:
            compiled.current_callable = on_copies(compiled.current_callable, tuple(donated))
            # In place: with tensor subclasses the metadata that a call looks at is another object with the same list.
            donated.clear()
    return compiled
