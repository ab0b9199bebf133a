"""Counters per uid since the daemon's start. A user sees only its own; root sees the sum."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import msgspec
from precompiled.service.log_lines import plain

from precompiled import wire

MAX_REASONS = 200  # distinct reasons per counter and uid; clients choose them
MAX_REASON_LENGTH = 80
MAX_AMOUNT = 1 << 40

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
        self._of: defaultdict[int, _Counters] = defaultdict(_Counters)

    def add(self, uid: int, counter: str, amount: float = 1, reason: str = "") -> None:
        """Add ``amount`` to a field of wire.StatsReply."""
        counters = self._of[uid]
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
                    self.add(uid, name, _sane(amount), reason)
            else:
                self.add(uid, name, _sane(getattr(message, name)))

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


def _sane(amount: float) -> float:
    return amount if math.isfinite(amount) and 0 <= amount <= MAX_AMOUNT else 0
