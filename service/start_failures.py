"""Delays or refuses starts after workers failed to start. Pure, like the scheduler.

- **Seats**: after two failed starts in a row within an hour, a seat is refused for a while. Its queued jobs fail, and
  its submits are rejected.
- **Expected graphs**: if a worker that was started ahead of a graph fails or gets no job, no worker is started ahead
  for its seat for a while. The seat's jobs are not refused. After a failure of a spare worker (placement.start_ahead),
  only spare workers are refused.
- **The host**: if it has no room for a process, no worker is started for a second. After 30 such starts in a row, the
  next one counts as a failure of its seat.
"""

from __future__ import annotations

from precompiled.service.cooldowns import Cooldown, Cooldowns
from precompiled.service.events import Limits
from precompiled.service.job_states import Seat

MAX_HOST_FULL, HOST_FULL_S = 30, 1.0
FIRST_FAILURE_S = 3600.0  # how long a seat's first failed start counts
# If a worker was started ahead of a graph and got no job, no worker is started ahead for its seat for this many
# seconds.
EXPECTED_IN_VAIN_S = 24 * 3600.0


class StartFailures:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.pause_until = 0.0  # no worker is started before this time
        self._host_full = 0  # starts in a row for which the host had no room
        self._failed_once: Cooldowns[Seat] = Cooldowns()
        self._refused: Cooldowns[Seat] = Cooldowns()
        self._in_vain: Cooldowns[Seat] = Cooldowns()
        self._spare_in_vain: Cooldowns[Seat] = Cooldowns()

    def refusal(self, seat: Seat, now: float) -> Cooldown | None:
        return self._refused.find(seat, now)

    def may_start_ahead(self, seat: Seat, now: float, *, spare: bool) -> bool:
        """Whether a worker may be started before its first graph is submitted."""
        if spare and self._spare_in_vain.find(seat, now):
            return False
        return not (self._refused.find(seat, now) or self._in_vain.find(seat, now))

    def succeeded(self, seat: Seat) -> None:
        self._host_full = 0
        self._failed_once.end(seat)
        self._refused.end(seat)

    def pauses(self, now: float) -> bool:
        """Pause starts because the host had no room; false if that has happened too often."""
        if self._host_full >= MAX_HOST_FULL:
            return False
        self._host_full += 1
        self.pause_until = now + HOST_FULL_S
        return True

    def failed(self, seat: Seat, text: str, now: float) -> bool:
        """Record a failed start that a job needed. Returns whether the seat is now refused (reason: ``text``)."""
        if self._failed_once.find(seat, now) is None:
            self._failed_once.start(seat, now + FIRST_FAILURE_S, "")
            return False
        self._failed_once.end(seat)
        self._refused.start(seat, now + self._limits.start_refused_s, text)
        return True

    def failed_ahead(self, seat: Seat, why: str, now: float, *, spare: bool) -> None:
        (self._spare_in_vain if spare else self._in_vain).start(seat, now + self._limits.start_refused_s, why)

    def got_no_job(self, seat: Seat, now: float, *, spare: bool) -> None:
        (self._spare_in_vain if spare else self._in_vain).start(seat, now + EXPECTED_IN_VAIN_S, "idle")

    def tick(self, now: float) -> None:
        self._failed_once.tick(now)
        self._refused.tick(now)
        self._in_vain.tick(now)
        self._spare_in_vain.tick(now)
