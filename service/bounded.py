"""Bounds the daemon's tables that a peer can fill."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def put_newest(table: dict[K, V], name: K, value: V, limit: int) -> None:
    """Set an entry of ``table``, which has ``limit`` entries at most. The entry that was set longest ago is removed
    first.
    """
    table.pop(name, None)
    while len(table) >= limit:
        del table[next(iter(table))]
    table[name] = value
