"""Keeps cooldowns: for a while, the daemon does not retry a key that killed workers, or a seat whose workers do not
start.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from precompiled.service.bounded import put_newest

MAX_COOLDOWNS = 4096  # the maximum number of entries of one table; the oldest entry is removed first

T = TypeVar("T")


class Cooldown(NamedTuple):
    until: float
    why: str


class Cooldowns(Generic[T]):
    """One table of names (flights, seats) with the end and the reason of their cooldowns."""

    def __init__(self) -> None:
        self._table: dict[T, Cooldown] = {}

    def start(self, name: T, until: float, why: str) -> None:
        put_newest(self._table, name, Cooldown(until, why), MAX_COOLDOWNS)

    def find(self, name: T, now: float) -> Cooldown | None:
        """The cooldown of ``name``; None if there is none, or if it has expired."""
        found = self._table.get(name)
        return found if found is not None and found.until > now else None

    def end(self, name: T) -> None:
        self._table.pop(name, None)

    def names(self) -> list[T]:
        return list(self._table)

    def tick(self, now: float) -> None:
        self._table = {name: found for name, found in self._table.items() if found.until > now}
