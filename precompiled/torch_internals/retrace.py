"""Have Dynamo trace a function again at its next call, as where an object that its guards know has gone.

For a graph that only a compile within Dynamo can serve: one that has it trace anew (with the value of a float, for
instance), or that adds guards. Dynamo's entry for the graph is invalidated, in the way of
torch/_dynamo/guards.py ``CheckFunctionManager.invalidate``, which torch does at any time, also while the entry runs.

Private names: torch._C._dynamo.eval_frame._debug_get_cache_entry_list, torch._dynamo.guards.{GuardManagerWrapper,
DeletedGuardManagerWrapper}, torch._dynamo.eval_frame._stance, torch._dynamo.config.{error_on_recompile,
recompile_limit}, torch._guards.CompileContext.current_compile_id. Checked on 2.11.0, 2.13.0, 2.15.0. An entry has a
compile_id and a guard_manager; that has a cache_entry and an extra_state, which has invalidate.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch._dynamo.config
import torch._dynamo.eval_frame
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.guards import DeletedGuardManagerWrapper
from torch._guards import CompileContext

from precompiled.torch_internals import traced

log = logging.getLogger("precompiled.retrace")


@dataclass(frozen=True)
class Traced:
    """A frame that Dynamo traces, and which of its traces that is."""

    code: CodeType
    compile_id: Any

    def again(self, why: str) -> bool:
        """Have Dynamo trace it at its next call; false where it would not, or where the program forbids it."""
        dynamo = torch._dynamo.config
        try:
            entries = _debug_get_cache_entry_list(self.code)
            # At its limit Dynamo runs the function eager, or raises; so it does where a stance or a setting says so.
            if len(entries) >= dynamo.recompile_limit or dynamo.error_on_recompile:
                return False
            if torch._dynamo.eval_frame._stance.stance != "default":
                return False
            mine = [entry.guard_manager for entry in entries if entry.compile_id == self.compile_id]
            for guards in mine:
                guards.extra_state.invalidate(guards.cache_entry, DeletedGuardManagerWrapper(why))
            return bool(mine)
        except (AttributeError, TypeError):  # another torch
            log.warning("Dynamo's entries are not as they were: a graph stays eager", exc_info=True)
        return False


def being_traced() -> Traced | None:
    """The frame that Dynamo hands over just now; None where there is none that can be told."""
    code, compile_id = traced.function(), CompileContext.current_compile_id()
    return None if code is None or compile_id is None else Traced(code, compile_id)
