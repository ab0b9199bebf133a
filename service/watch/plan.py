"""Decides when a watch captures: a pure state machine over edits, ends of captures, and the time.

::

               edited                    due                        ended
    (at rest) ────────► waiting ──────────────────► capturing ──────────────► (at rest)
                        ▲ │ ▲ │                           │
      edited: due later │ │ │ └─ unneeded ─► (at rest)    │ edited: kill, and wait again
                        └─┘ └─────────────────────────────┘

An edit kills the running capture, since its results are obsolete. After ``MAX_KILLS`` kills in a row, the next capture
runs to its end: otherwise a user whose editor saves every second would never see a result.
"""

from __future__ import annotations

from dataclasses import dataclass

DEBOUNCE_S = 0.15  # seconds from the last edit to the capture, since editors write, rename and write again
MAX_KILLS = 5


@dataclass
class Plan:
    """The state of one watch. ``due``: when the next capture begins, by the caller's clock; None until the next edit
    sets this time.
    """

    due: float | None = None
    capturing: bool = False
    kills: int = 0  # captures in a row that an edit has killed

    def edited(self, now: float) -> bool:
        """A source has changed. Returns whether to kill the running capture."""
        self.due = now + DEBOUNCE_S
        if self.capturing and self.kills < MAX_KILLS:
            self.capturing = False
            self.kills += 1
            return True
        return False

    def begin(self, now: float) -> None:
        """Make a capture due now, without an edit."""
        self.due = now

    def is_due(self, now: float) -> bool:
        return self.due is not None and now >= self.due and not self.capturing

    def started(self) -> None:
        self.due, self.capturing = None, True

    def unneeded(self) -> None:
        """Drop the due capture: the sources are back to a state that was captured already."""
        self.due, self.kills = None, 0

    def ended(self) -> None:
        """The capture has ended by itself, with or without an error."""
        self.capturing, self.kills = False, 0

    def next_wake(self, now: float) -> float | None:
        return None if self.due is None or self.capturing else max(0.0, self.due - now)
