"""Have Dynamo trace a function again at its next call, as where an object that its guards know has gone.

For a graph that only a compile within Dynamo can serve: one that has it trace anew (with the value of a float, for
instance), or that adds guards. Dynamo's entry for the graph is invalidated, in the way of torch/_dynamo/guards.py
``CheckFunctionManager.invalidate``, which torch does at any time, also while the entry runs. The next trace leaves its
graph to a compile in process, whatever its key is (docs/decisions/0052).

Private names: torch._C._dynamo.eval_frame._debug_get_cache_entry_list, torch._dynamo.guards.{GuardManagerWrapper,
DeletedGuardManagerWrapper}, torch._dynamo.eval_frame._stance, torch._dynamo.config.{error_on_recompile,
recompile_limit}, torch._guards.CompileContext.current_compile_id. Checked on 2.11.0, 2.13.0, 2.15.0. An entry has a
compile_id and a guard_manager; that has a cache_entry and an extra_state, which has invalidate.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch._dynamo.config
import torch._dynamo.eval_frame
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.guards import DeletedGuardManagerWrapper
from torch._guards import CompileContext

from precompiled.core.errors import Bypass
from precompiled.torch_internals.eager import enclosing_regions
from precompiled.torch_internals.graph import trace_origin

log = logging.getLogger("precompiled.retrace")

# Why the next trace of a function is left to a compile in process; None once it was. A function is traced again
# once: its invalid entries count for Dynamo's limit.
_asked: weakref.WeakKeyDictionary[CodeType, Bypass | None] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Traced:
    """A frame that Dynamo traces, and which of its traces that is. ``limit``: of its entries."""

    code: weakref.ref[CodeType]  # a code object keeps Dynamo's entries, and they what runs the graph
    compile_id: Any
    limit: int

    @staticmethod
    def is_safe() -> bool:
        """Whether nothing around this call runs it again, and takes one run for the other (enclosing_regions.py)."""
        return not (
            enclosing_regions.in_a_checkpoint()
            or enclosing_regions.in_a_backward()
            or enclosing_regions.in_a_function()
        )

    def again(self, why: Bypass) -> bool:
        """Have Dynamo trace it at its next call; false where it would not, or where the program forbids it."""
        code = self.code()
        if code is None:
            return False
        try:
            entries = _debug_get_cache_entry_list(code)
            # At its limit Dynamo runs the function eager, or raises; so it does where a stance or a setting says so.
            if code in _asked or 2 * len(entries) > self.limit or torch._dynamo.config.error_on_recompile:
                return False
            stance = torch._dynamo.eval_frame._stance
            if stance.stance != "default" or stance.skip_guard_eval_unsafe:
                return False
            mine = [entry.guard_manager for entry in entries if entry.compile_id == self.compile_id]
            for guards in mine:
                if not isinstance(guards, DeletedGuardManagerWrapper):
                    guards.extra_state.invalidate(guards.cache_entry, DeletedGuardManagerWrapper(str(why)))
        except (AttributeError, TypeError):  # another torch
            log.warning("Dynamo's entries are not as they were: a graph stays eager", exc_info=True)
            return False
        if mine:
            _asked[code] = why
        return bool(mine)


def being_traced() -> Traced | None:
    """The frame that Dynamo hands over just now; None where there is none that can be told."""
    code, compile_id = trace_origin.function(), CompileContext.current_compile_id()
    if code is None or compile_id is None:
        return None
    # A torch.compile with a limit of its own has set it for as long as Dynamo is at the frame.
    return Traced(weakref.ref(code), compile_id, torch._dynamo.config.recompile_limit)


def why_in_process() -> Bypass | None:
    """Why the graph that Dynamo hands over just now is to be compiled in process, told once; None for almost all."""
    code = trace_origin.function()
    why = _asked.get(code) if code is not None else None
    if code is not None and why is not None:
        _asked[code] = None
    return why
