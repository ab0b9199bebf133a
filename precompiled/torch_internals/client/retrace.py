"""Makes Dynamo retrace a function at its next call, as if an object that its guards refer to had been deleted.

Some graphs can be compiled only during Dynamo's trace, because their compile makes Dynamo retrace (with the value of a
float, for example), or adds guards. So the client invalidates Dynamo's cache entry for the graph in the same way as
``CheckFunctionManager.invalidate`` (torch/_dynamo/guards.py). This is safe at any time: torch itself calls
``invalidate`` even while the entry's code runs. The graph of the next trace is compiled in process, whatever its key is
(docs/decisions/0052).

A cache entry has a compile_id and a guard_manager. The guard_manager has a cache_entry and an extra_state. This file
calls the extra_state's method invalidate.

Private names: torch._C._dynamo.eval_frame._debug_get_cache_entry_list, torch._dynamo.guards.{GuardManagerWrapper,
DeletedGuardManagerWrapper}, torch._dynamo.eval_frame._stance, torch._dynamo.config.{error_on_recompile,
recompile_limit}, torch._guards.CompileContext.current_compile_id. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from types import CodeType

import torch._dynamo.config
import torch._dynamo.eval_frame
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.guards import DeletedGuardManagerWrapper
from torch._guards import CompileContext

from precompiled.core.errors import Bypass
from precompiled.torch_internals.eager import enclosing_regions
from precompiled.torch_internals.graph import trace_origin

log = logging.getLogger("precompiled.retrace")

# Maps the code of a retraced function to the reason why its next trace is compiled in process, or to None after that
# trace. A function is retraced only once, because its invalidated entries count towards Dynamo's recompile limit.
_asked: weakref.WeakKeyDictionary[CodeType, Bypass | None] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class TracedFrame:
    """A frame that Dynamo traces, and the compile id of this trace. ``limit``: the maximum number of the frame's cache
    entries.
    """

    # A weak reference: a code object keeps Dynamo's entries alive, and an entry keeps the graph's callable alive.
    code: weakref.ref[CodeType]
    compile_id: object
    limit: int

    @staticmethod
    def is_safe() -> bool:
        """Whether this call runs only once: false in a region that may repeat the call (enclosing_regions.py)."""
        return not (
            enclosing_regions.in_a_checkpoint()
            or enclosing_regions.in_a_backward()
            or enclosing_regions.in_a_function()
        )

    def again(self, why: Bypass) -> bool:
        """Make Dynamo retrace the frame at its next call.

        Returns false if Dynamo would not retrace, or if the program forbids retraces.
        """
        code = self.code()
        if code is None:
            return False
        try:
            entries = _debug_get_cache_entry_list(code)
            # At its recompile limit, or with some stances and settings, Dynamo would run eagerly or raise instead of
            # retracing.
            if code in _asked or 2 * len(entries) > self.limit or torch._dynamo.config.error_on_recompile:
                return False
            stance = torch._dynamo.eval_frame._stance
            if stance.stance != "default" or stance.skip_guard_eval_unsafe:
                return False
            mine = [entry.guard_manager for entry in entries if entry.compile_id == self.compile_id]
            for guards in mine:
                if not isinstance(guards, DeletedGuardManagerWrapper):
                    guards.extra_state.invalidate(guards.cache_entry, DeletedGuardManagerWrapper(str(why)))
        except (AttributeError, TypeError):  # this torch uses other names
            log.warning("Dynamo's entries changed, so a graph stays eager", exc_info=True)
            return False
        if mine:
            _asked[code] = why
        return bool(mine)


def being_traced() -> TracedFrame | None:
    """The frame that Dynamo traces. None if unknown."""
    code, compile_id = trace_origin.function(), CompileContext.current_compile_id()
    if code is None or compile_id is None:
        return None
    # While Dynamo traces the frame, this setting contains the limit of the torch.compile call, if the call sets one.
    return TracedFrame(weakref.ref(code), compile_id, torch._dynamo.config.recompile_limit)


def why_in_process() -> Bypass | None:
    """Return why the current graph must be compiled in process, or None. Returns each reason that ``again`` has
    recorded only once.
    """
    code = trace_origin.function()
    why = _asked.get(code) if code is not None else None
    if code is not None and why is not None:
        _asked[code] = None
    return why
