#!/usr/bin/env python3
"""Update the lists of docs/reference/reasons.md from precompiled/core/reasons.tsv: `PYTHON tools/reasons_page.py`.

The text around the lists is in the page itself.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "reasons.md"
sys.path.insert(0, str(ROOT))

from precompiled.core.reasons import Reason, ReasonKind, read_reasons  # noqa: E402 - needs the sys.path entry above

# The page states these once, so a code's entry omits them.
_USUAL = {
    "the client compiles the graph in process",
    "a local worker compiles the graph",
    "no remedy yet",
    "read the message",
    "Read the message",
}


def point(reason: Reason) -> str:
    """The Markdown of one code."""
    # All bypasses share one outcome, which the heading names. Users cannot act on a worker's reasons.
    follows = "" if reason.kind is ReasonKind.BYPASS else reason.follows
    advice = "" if reason.kind is ReasonKind.WORKER else reason.advice
    texts = [text for text in (follows, advice) if text and text not in _USUAL]
    text = ". ".join([reason.meaning, *(text[0].upper() + text[1:] for text in texts)])
    # Lines break outside of code and links. textwrap does not break at a no-break space.
    text = re.sub(r"`[^`]*`|\[[^]]*\]\([^)]*\)", lambda whole: whole[0].replace(" ", "\xa0"), text)
    lines = textwrap.fill(f"- `{reason.code}`: {text}.", 120, subsequent_indent="  ", break_on_hyphens=False)
    return lines.replace("\xa0", " ") + "\n"


def points(kind: ReasonKind) -> str:
    """The Markdown of one section's list."""
    return "".join(point(reason) for reason in read_reasons().values() if reason.kind is kind)


def page(text: str) -> str:
    """Return the page with new lists. Raises ValueError if a section has no list."""
    for kind in ReasonKind:
        start = text.index(f"\n## {kind.value}\n")
        end = text.find("\n## ", start + 1)
        section = text[start : end if end >= 0 else len(text)]
        old = re.search(r"(?:^- `(?:.*\n)(?:  .*\n)*)+", section, re.MULTILINE)
        if old is None:
            raise ValueError(f"docs/reference/reasons.md has no list below {kind.value!r}")
        text = text.replace(section, section.replace(old[0], points(kind)))
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
