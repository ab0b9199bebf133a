"""Finds the guarded value whose change gave a function a second trace, and so a second graph."""

from __future__ import annotations

from contextlib import suppress

from precompiled.core.errors import StoreError
from precompiled.packages.describe.difference import EntryDifference
from precompiled.packages.nearest_entry import Comparison, compare
from precompiled.store.artifacts import Store
from precompiled.store.package_format import About
from precompiled.store.packages import Entry


def first_value(store: Store, key: str, other_key: str) -> EntryDifference | None:
    """The first constant that differs between the traces of two graphs. None if the store lacks these traces.

    If a graph has several traces, the two most similar traces are compared.
    """
    entries: dict[str, list[Entry]] = {key: [], other_key: []}
    for entry in store.packages.entries():
        for of_key, found in entries.items():
            if of_key in entry.header.artifacts:
                found.append(entry)
    pairs: list[Comparison] = []
    for mine in entries[key]:
        for other in entries[other_key]:
            if (mine.header.module, mine.header.qualname) != (other.header.module, other.header.qualname):
                continue
            with suppress(StoreError):
                pairs.append(compare((mine.header, About.parse(mine.about)), (other.header, About.parse(other.about))))
    pairs.sort(key=lambda pair: pair.rank)
    return next((item for pair in pairs for item in pair.changes if item.is_value), None)
