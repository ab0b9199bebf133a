"""When to capture: a pure state machine of one watch. Edits, ends and the time go in, what to do comes out.

::

               edited                    due                        ended
    (at rest) ────────► waiting ──────────────────► capturing ──────────────► (at rest)
                          ▲  │ edited: later              │ edited: kill, and wait again
                          │  └─ unneeded ─► (at rest)     │
                          └───────────────────────────────┘

A capture is killed by an edit, since what it finds is obsolete; but not for ever: somebody whose editor saves every
second would never see one end, so after ``MAX_KILLS`` in a row one is let through, and the next begins after it.
"""

from __future__ import annotations

from dataclasses import dataclass

DEBOUNCE_S = 0.15  # after the last edit: editors write, rename and write again
MAX_KILLS = 5


@dataclass
class Plan:
    """``due``: when the next capture begins, in the caller's clock; None: not before an edit."""

    due: float | None = None
    capturing: bool = False
    kills: int = 0  # captures in a row that an edit has ended

    def edited(self, now: float) -> bool:
        """A source has other contents. Returns whether the capture under way is to be killed."""
        self.due = now + DEBOUNCE_S
        if self.capturing and self.kills < MAX_KILLS:
            self.capturing = False
            self.kills += 1
            return True
        return False

    def begin(self, now: float) -> None:
        """Capture as soon as possible, without an edit."""
        self.due = now

    def is_due(self, now: float) -> bool:
        return self.due is not None and now >= self.due and not self.capturing

    def started(self) -> None:
        self.due, self.capturing = None, True

    def unneeded(self) -> None:
        """It was due, but what the sources say now is captured already."""
        self.due, self.kills = None, 0

    def ended(self) -> None:
        """The capture has come to its own end, well or not."""
        self.capturing, self.kills = False, 0

    def next_wake(self, now: float) -> float | None:
        return None if self.due is None or self.capturing else max(0.0, self.due - now)
