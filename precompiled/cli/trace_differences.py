"""Finds the guarded value that made two traces of one function differ, and so made their graphs differ."""

from __future__ import annotations

from contextlib import suppress

from precompiled.core.errors import StoreError
from precompiled.packages.describe import difference
from precompiled.store.artifacts import Store
from precompiled.store.package_format import About
from precompiled.store.packages import Entry


def first_value(store: Store, key: str, other_key: str) -> difference.EntryDifference | None:
    """The first constant that differs between the traces that made two graphs. None if the store has no such traces.

    If a graph has several traces, the pair with the fewest differences decides.
    """
    entries: dict[str, list[Entry]] = {key: [], other_key: []}
    for entry in store.packages.entries():
        for of_key, found in entries.items():
            if of_key in entry.header.artifacts:
                found.append(entry)
    pairs: list[list[difference.EntryDifference]] = []
    for mine in entries[key]:
        for other in entries[other_key]:
            if (mine.header.module, mine.header.qualname) != (other.header.module, other.header.qualname):
                continue
            with suppress(StoreError):
                pairs.append(
                    difference.entries((mine.header, About.parse(mine.about)), (other.header, About.parse(other.about)))
                )
    pairs.sort(key=len)
    return next((item for found in pairs for item in found if item.is_value), None)
