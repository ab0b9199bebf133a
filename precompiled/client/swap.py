"""The life of one graph in one process: a pure state machine.

Events in, instructions out; no I/O, no clock, no torch. ``pending.py`` carries out what it has to be told: LOAD, SUBMIT
and COMPILE_INLINE_LATER. The others say what happens where the event comes from (``backend.py``, ``dispatch.py``).

::

                      hit                          loaded
        (new) ───────────────► compiled ◄──────────────────────┐
          │ bypass                                             │
          ├───────────────► bypassed ◄─ refused, bypass┐       │
          │ miss                                       │       │
          └───────────────► pending ───────────────────┴───────┤
                             │  ▲ load-failed (submit again)   │
                             │  └──────────────────────────────┘
                             │ failed, or load-failed too often
                             └───────────────► failed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from precompiled.core.errors import PrecompiledError


class State(str, Enum):
    """The public states of a graph (``GraphReport.state``)."""

    EAGER = "eager"  # captured, nothing decided yet
    PENDING = "pending"  # runs eager, its artifact is awaited
    COMPILED = "compiled"
    FAILED = "failed"  # runs eager for good in this process
    BYPASSED = "bypassed"  # compiled in process, as without us


class Event(str, Enum):
    HIT = "hit"
    BYPASS = "bypass"
    MISS = "miss"
    PUBLISHED = "published"  # the artifact is in the store
    LOADED = "loaded"
    LOAD_FAILED = "load-failed"
    FAILED = "failed"  # a failure record is in the store
    REFUSED = "refused"  # the daemon will not compile it


class Instruction(str, Enum):
    RUN_EAGER = "run-eager"
    COMPILE_INLINE = "compile-inline"  # now: the graph's frame is being compiled
    COMPILE_INLINE_LATER = "compile-inline-later"  # at the next call
    SUBMIT = "submit"
    WATCH = "watch"
    LOAD = "load"
    FLIP = "flip"
    UNWATCH = "unwatch"


# An artifact that could not be loaded is compiled anew, but not for ever.
MAX_LOADS = 3

_TABLE: dict[tuple[State, Event], tuple[State, tuple[Instruction, ...]]] = {
    (State.EAGER, Event.HIT): (State.COMPILED, ()),
    (State.EAGER, Event.BYPASS): (State.BYPASSED, (Instruction.COMPILE_INLINE,)),
    (State.EAGER, Event.MISS): (State.PENDING, (Instruction.WATCH, Instruction.SUBMIT, Instruction.RUN_EAGER)),
    (State.PENDING, Event.PUBLISHED): (State.PENDING, (Instruction.LOAD,)),
    (State.PENDING, Event.LOADED): (State.COMPILED, (Instruction.UNWATCH, Instruction.FLIP)),
    (State.PENDING, Event.LOAD_FAILED): (State.PENDING, (Instruction.SUBMIT,)),
    (State.PENDING, Event.FAILED): (State.FAILED, (Instruction.UNWATCH,)),
    (State.PENDING, Event.BYPASS): (State.BYPASSED, (Instruction.UNWATCH, Instruction.COMPILE_INLINE)),
    (State.PENDING, Event.REFUSED): (State.BYPASSED, (Instruction.UNWATCH, Instruction.COMPILE_INLINE_LATER)),
}
_FINAL = frozenset({State.COMPILED, State.FAILED, State.BYPASSED})


@dataclass
class Swap:
    """One graph. ``story`` lists what happened, for errors and ``show``."""

    state: State = State.EAGER
    loads_failed: int = 0
    story: list[str] = field(default_factory=list)

    def on(self, event: Event) -> tuple[Instruction, ...]:
        """Take an event; what is to be done now. A graph that is done takes no more events: they came too late."""
        self.story.append(f"{self.state.value} + {event.value}")
        if self.state in _FINAL:
            return ()
        if event is Event.LOAD_FAILED and self.state is State.PENDING:
            self.loads_failed += 1
            if self.loads_failed >= MAX_LOADS:
                self.state = State.FAILED
                return (Instruction.UNWATCH,)
        try:
            self.state, instructions = _TABLE[self.state, event]
        except KeyError:
            raise PrecompiledError(
                f"a graph that is {self.state.value} cannot take {event.value!r}: {'; '.join(self.story)}",
                "This is a bug in precompiled: please report it with this text",
                code="swap-transition",
            ) from None
        return instructions
