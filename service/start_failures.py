"""What the scheduler has learned from workers that did not start. Pure, as the scheduler is.

- **Seats**: after two failed starts in a row a seat is refused for a while. Its queued jobs end, its submits are
  rejected.
- **Expected graphs**: a worker that was started ahead of a graph may fail, or get no job. Its seat then gets no worker
  ahead of a graph for a while. Its jobs are not refused for that.
- **The host**: where it has no room for a process, no worker is started for a second. This holds for 30 starts in a
  row; the next such start counts as a failure of its seat.
"""

from __future__ import annotations

from collections import Counter

from precompiled.service.cooldowns import Cooldown, Cooldowns
from precompiled.service.events import Limits
from precompiled.service.jobs import Seat

MAX_HOST_FULL, HOST_FULL_S = 30, 1.0
MAX_IN_ROW = 2  # before a seat is refused
EXPECTED_IN_VAIN_S = 24 * 3600.0  # after a worker that got no job


class StartFailures:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.pause_until = 0.0  # no worker is started before
        self._host_full = 0  # starts in a row
        self._in_row: Counter[Seat] = Counter()
        self._refused: Cooldowns[Seat] = Cooldowns()
        self._in_vain: Cooldowns[Seat] = Cooldowns()

    def refusal(self, seat: Seat, now: float) -> Cooldown | None:
        return self._refused.find(seat, now)

    def may_start_ahead(self, seat: Seat, now: float) -> bool:
        """Whether a worker may be started before its first graph comes."""
        return not (self._refused.find(seat, now) or self._in_vain.find(seat, now))

    def succeeded(self, seat: Seat) -> None:
        self._host_full = 0
        del self._in_row[seat]
        self._refused.end(seat)

    def pauses(self, now: float) -> bool:
        """Note that the host had no room; false where that was so too often."""
        if self._host_full >= MAX_HOST_FULL:
            return False
        self._host_full += 1
        self.pause_until = now + HOST_FULL_S
        return True

    def failed(self, seat: Seat, text: str, now: float) -> bool:
        """Note a failed start that a job waited for; whether the seat is now refused, for the reason ``text``."""
        self._in_row[seat] += 1
        if self._in_row[seat] < MAX_IN_ROW:
            return False
        del self._in_row[seat]
        self._refused.start(seat, now + self._limits.start_refused_s, text)
        return True

    def failed_ahead(self, seat: Seat, why: str, now: float) -> None:
        self._in_vain.start(seat, now + self._limits.start_refused_s, why)

    def got_no_job(self, seat: Seat, now: float) -> None:
        self._in_vain.start(seat, now + EXPECTED_IN_VAIN_S, "idle")

    def tick(self, now: float) -> None:
        self._refused.tick(now)
        self._in_vain.tick(now)
