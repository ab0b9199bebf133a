#!/usr/bin/env python3
"""Update the tables of docs/reference/reasons.md from precompiled/core/reasons.tsv: `PYTHON tools/reasons_page.py`.

The text around the tables is in the page itself.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "reasons.md"
sys.path.insert(0, str(ROOT))

from precompiled.core.reasons import Outcome, Reason, ReasonKind, read_reasons  # noqa: E402 - needs the sys.path entry above

# Within these kinds, codes have different consequences. All bypasses share one consequence; other kinds have none.
_SAYS_WHAT_FOLLOWS = (ReasonKind.FAILURE, ReasonKind.STORE, ReasonKind.DAEMON, ReasonKind.REMOTE, ReasonKind.FARM)
# What follows most codes. The text above the tables says it once, so rows leave it out.
_USUAL = (Outcome.IN_PROCESS.value, "a local worker compiles the graph")


def _advice(reason: Reason) -> str:
    if reason.kind not in _SAYS_WHAT_FOLLOWS:
        return reason.advice
    return ". ".join(text for text in (reason.follows, reason.advice) if text and text not in _USUAL)


def table(kind: ReasonKind) -> str:
    """The Markdown of one section's table."""
    reasons = [reason for reason in read_reasons().values() if reason.kind is kind]
    rows = [(f"`{reason.code}`", reason.meaning, _advice(reason)) for reason in reasons]
    last = "what happens then, and what you can do" if kind in _SAYS_WHAT_FOLLOWS else "what you can do"
    columns = 2 if kind is ReasonKind.WORKER else 3  # users cannot act on a worker's reasons
    head, *lines = [f"| {' | '.join(row[:columns])} |\n" for row in [("code", "what it means", last), *rows]]
    return "".join([head, "|---" * columns + "|\n", *lines])


def page(text: str) -> str:
    """Return the page with new tables. Raises ValueError if a section has none."""
    for kind in ReasonKind:
        start = text.index(f"\n## {kind.value}\n")
        end = text.find("\n## ", start + 1)
        section = text[start : end if end >= 0 else len(text)]
        old = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
        if old is None:
            raise ValueError(f"docs/reference/reasons.md has no table below {kind.value!r}")
        text = text.replace(section, section.replace(old[0], table(kind)))
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
