"""Tracks the state of one graph in one process, as a pure state machine without I/O, clock or torch.

``Swap.on`` takes an event and returns an instruction, which ``pending.py`` carries out. For most events, the caller has
already acted, and the method returns None.

::

                      hit                          loaded
        (new) ───────────────► compiled ◄──────────────────────┐
          │ bypass                                             │
          ├───────────────► bypassed ◄─ refused, bypass┐       │
          │ failed                                     │       │
          ├───────────────► failed ◄──── failed ───────┤       │
          │ miss                                       │       │
          └───────────────► pending ───────────────────┴───────┤
                                ▲ load-failed (submit again)   │
                                └──────────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from precompiled.core.errors import PrecompiledError


class State(str, Enum):
    """The public states of a graph (``GraphReport.state``)."""

    EAGER = "eager"  # captured, but not looked up
    PENDING = "pending"  # runs eager and awaits its artifact
    COMPILED = "compiled"
    FAILED = "failed"  # stays eager in this process; with ``require`` its calls raise NotServed
    BYPASSED = "bypassed"  # compiled in process, as without precompiled


class Event(str, Enum):
    HIT = "hit"
    BYPASS = "bypass"
    MISS = "miss"
    PUBLISHED = "published"  # the artifact is in the store
    LOADED = "loaded"
    LOAD_FAILED = "load-failed"
    FAILED = "failed"  # no artifact will come, and the client does not compile the graph
    REFUSED = "refused"  # the daemon refuses to compile the graph


class Instruction(str, Enum):
    LOAD = "load"
    SUBMIT = "submit"  # submit the graph again, as a new job
    COMPILE_INLINE_LATER = "compile-inline-later"  # compile in process at the next call


# If an artifact cannot be loaded, the client submits the graph again, until this many loads have failed.
MAX_LOADS = 3

_TABLE: dict[tuple[State, Event], tuple[State, Instruction | None]] = {
    (State.EAGER, Event.HIT): (State.COMPILED, None),
    (State.EAGER, Event.BYPASS): (State.BYPASSED, None),
    (State.EAGER, Event.MISS): (State.PENDING, None),
    (State.EAGER, Event.FAILED): (State.FAILED, None),
    (State.PENDING, Event.PUBLISHED): (State.PENDING, Instruction.LOAD),
    (State.PENDING, Event.LOADED): (State.COMPILED, None),
    (State.PENDING, Event.LOAD_FAILED): (State.PENDING, Instruction.SUBMIT),
    (State.PENDING, Event.FAILED): (State.FAILED, None),
    (State.PENDING, Event.BYPASS): (State.BYPASSED, None),
    (State.PENDING, Event.REFUSED): (State.BYPASSED, Instruction.COMPILE_INLINE_LATER),
}
_FINAL = frozenset({State.COMPILED, State.FAILED, State.BYPASSED})


@dataclass
class Swap:
    """The state of one graph. ``story`` lists its events, for errors and ``precompiled cache show``."""

    state: State = State.EAGER
    loads_failed: int = 0
    story: list[str] = field(default_factory=list)

    def on(self, event: Event) -> Instruction | None:
        """Take an event, and return the next instruction or None. In a final state, ignore events."""
        self.story.append(f"{self.state.value} + {event.value}")
        if self.state in _FINAL:
            return None
        if event is Event.LOAD_FAILED and self.state is State.PENDING:
            self.loads_failed += 1
            if self.loads_failed >= MAX_LOADS:
                return None
        try:
            self.state, instruction = _TABLE[self.state, event]
        except KeyError:
            raise PrecompiledError(
                f"a graph that is {self.state.value} cannot take {event.value!r}: {'; '.join(self.story)}",
                "This is a bug in precompiled. Please report it with this text",
                code="swap-transition",
            ) from None
        return instruction
