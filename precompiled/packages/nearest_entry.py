"""Compares the entries of one function, and finds those nearest to an entry. A trace's reasons and `explain` use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from precompiled.core.errors import StoreError
from precompiled.core.names import in_words
from precompiled.packages.describe import difference
from precompiled.packages.describe.difference import EntryDifference
from precompiled.store.package_format import About, Header
from precompiled.store.packages import Entry


class TriedEntry(NamedTuple):
    """A stored entry that did not fit a frame. ``reason``: the first difference that the search found."""

    entry: Entry
    reason: str


class Comparison(NamedTuple):
    """How an entry differs from another. The entry with the lowest ``rank`` is the nearest."""

    changes: list[EntryDifference]  # values come first, because they explain the other changes
    identities: list[EntryDifference]  # other objects or other memory, which usually follow from a change
    rank: tuple[bool, int, int]


def compare(one: tuple[Header, About], other: tuple[Header, About]) -> Comparison:
    """Compare two entries as the store has them.

    An entry of a skipped frame has no guards, so it ranks behind all entries of compiled frames.
    """
    found = difference.entries(one, other)
    changes = _distinct(sorted((item for item in found if not item.is_identity), key=lambda item: not item.is_value))
    identities = _distinct(item for item in found if item.is_identity)
    edits = one[0].code != other[0].code
    return Comparison(changes, identities, (one[0].kind != other[0].kind, len(changes) + edits, len(identities)))


def nearest_first(made: tuple[Header, bytes], tried: Sequence[TriedEntry], reasons: Sequence[str]) -> tuple[str, ...]:
    """The reasons of a trace. Reasons that compare the new entry (``made``) with the nearest entries come first.

    If a constant differs, the reason names the constant, because other differences usually follow from it.
    """
    # Parse the new description as if it were stored: the one in memory has tuples instead of lists, so every size would
    # differ.
    new = made[0], About.parse(made[1])
    ranked = []
    for entry, reason in tried:
        with suppress(StoreError):  # the entry has no readable description
            found = compare(new, (entry.header, About.parse(entry.about)))
            values = [item for item in found.changes[:1] if item.is_value]
            ranked.append((found.rank, values[0].said("when it was traced") if values else reason, reason))
    ranked.sort(key=lambda item: item[0])
    compared = {reason for *_, reason in ranked}
    return (*(text for _, text, _ in ranked), *(reason for reason in reasons if reason not in compared))


def _distinct(found: Iterable[EntryDifference]) -> list[EntryDifference]:
    """The differences, without those that have the same text in the program's names.

    Dynamo may have several names for one value.
    """
    texts: dict[str, EntryDifference] = {}
    for item in found:
        texts.setdefault(in_words(str(item)), item)
    return list(texts.values())
