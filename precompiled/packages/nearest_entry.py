"""Orders the reasons of a trace, so that the first one compares the trace with the most similar stored entry."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from precompiled.core.errors import StoreError
from precompiled.packages.describe import difference
from precompiled.store.package_format import About, Header
from precompiled.store.packages import Entry


class TriedEntry(NamedTuple):
    """A stored entry that did not fit a frame. ``reason``: the first difference that the search found."""

    entry: Entry
    reason: str


def nearest_first(made: tuple[Header, About], tried: Sequence[TriedEntry], reasons: Sequence[str]) -> tuple[str, ...]:
    """The reasons of a trace, sorted by the number of differences between the compared entry and the new one
    (``made``).

    If a constant differs, the reason names the constant, because other differences usually follow from it.
    """
    ranked = []
    for entry, reason in tried:
        with suppress(StoreError):  # the entry has no readable description
            found = difference.entries(made, (entry.header, About.parse(entry.about)))
            values = [item for item in found if item.is_value]
            plain = sum(not item.is_identity for item in found)
            ranked.append((plain, len(found), values[0].said("when it was traced") if values else reason, reason))
    ranked.sort(key=lambda item: item[:2])
    compared = {reason for *_, reason in ranked}
    return (*(text for _, _, text, _ in ranked), *(reason for reason in reasons if reason not in compared))
