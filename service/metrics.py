"""Counters per uid, which survive a restart of the daemon.

A user sees only its own counters; root sees the sum of all.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from precompiled.service.log_lines import plain

from precompiled import wire
from precompiled.store import saved_counts
from precompiled.store.saved_counts import sane

log = logging.getLogger("precompiled.daemon")

MAX_REASONS = 200  # distinct reasons per counter and uid; clients choose them
MAX_REASON_LENGTH = 80
MAX_USERS = 1000  # a user may have thousands of uids (subuid(5)); further uids share the counters of OTHERS
OTHERS = -1

# wire.StatsReply defines the counters: numbers, and tables by reason.
_FIELDS = msgspec.structs.fields(wire.StatsReply)
BY_REASON = tuple(field.name for field in _FIELDS if field.default_factory is dict)
NUMBERS = tuple(field.name for field in _FIELDS if field.name not in BY_REASON)
_TALLIED = tuple(name for name in wire.Tally.__struct_fields__ if name != "pid")


@dataclass
class _Counters:
    numbers: dict[str, float] = field(default_factory=lambda: dict.fromkeys(NUMBERS, 0))
    reasons: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in BY_REASON})


class Metrics:
    def __init__(self) -> None:
        self._of: dict[int, _Counters] = {}
        self._directory: Path | None = None
        self._is_saved = True

    def load(self, directory: Path) -> None:
        """Continue the counts that the last daemon saved in this directory, and save the counts there from now on."""
        self._directory = directory
        try:
            for uid, counts in saved_counts.read(directory).items():
                mine = self._counters(uid)
                mine.numbers.update({name: counts[name] for name in NUMBERS if name in counts})
                mine.reasons.update({name: counts[name] for name in BY_REASON if name in counts})
        except (OSError, ValueError) as error:
            log.warning("the counts start at 0: %s", error)

    def _counters(self, uid: int) -> _Counters:
        if uid not in self._of and len(self._of) >= MAX_USERS:
            uid = OTHERS
        return self._of.setdefault(uid, _Counters())

    def save(self) -> None:
        """Save the counts, if they have changed."""
        if self._is_saved or self._directory is None:
            return
        self._is_saved = True
        try:
            saved_counts.write(self._directory, {uid: {**its.numbers, **its.reasons} for uid, its in self._of.items()})
        except OSError as error:
            log.info("the counts cannot be saved: %s", error)

    def add(self, uid: int, counter: str, amount: float = 1, reason: str = "") -> None:
        """Add ``amount`` to a field of wire.StatsReply."""
        self._is_saved = False
        counters = self._counters(uid)
        if counter in BY_REASON:
            table = counters.reasons[counter]
            reason = plain(reason, MAX_REASON_LENGTH)
            if reason not in table and len(table) >= MAX_REASONS:
                reason = "other"
            table[reason] = table.get(reason, 0) + int(amount)
        else:
            counters.numbers[counter] += amount

    def tally(self, uid: int, message: wire.Tally) -> None:
        """Add a client's own counts. Impossible amounts (negative, NaN, huge) count as 0."""
        for name in _TALLIED:
            if name in BY_REASON:
                for reason, amount in list(getattr(message, name).items())[:MAX_REASONS]:
                    self.add(uid, name, sane(amount), reason)
            else:
                self.add(uid, name, sane(getattr(message, name)))

    def reply(self, uid: int | None) -> wire.StatsReply:
        """The counters of one uid; None: the sum over all."""
        chosen = list(self._of.values()) if uid is None else [self._of[uid]] if uid in self._of else []
        values: dict[str, object] = {}
        for name in NUMBERS:
            total = sum(counters.numbers[name] for counters in chosen)
            values[name] = float(total) if name.endswith("_s") else int(total)
        for name in BY_REASON:
            table: dict[str, int] = {}
            for counters in chosen:
                for reason, amount in counters.reasons[name].items():
                    table[reason] = table.get(reason, 0) + amount
            values[name] = table
        return wire.StatsReply(**values)  # type: ignore[arg-type]
