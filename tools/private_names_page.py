#!/usr/bin/env python3
"""Make the lists of docs/reference/private-torch-names.md from docstrings: `PYTHON tools/private_names_page.py`.

Each file in a room for private names says in its docstring which it uses, and where that was checked::

    Private names: torch._guards.{TracingContext, tracing}, torch._dynamo.source.{Plain, Sliced (2.13, 2.15)}.
    Checked on 2.11.0, 2.13.0, 2.15.0.

or "No private names. Checked on ...". Where a name is for some of these versions alone, they stand behind it.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "private-torch-names.md"
FILES = sorted(
    path
    for room in ("precompiled/torch_internals", "precompiled/packages/dynamo")
    for path in (ROOT / room).rglob("[!_]*.py")
)

_PARAGRAPH = re.compile(r"(?:Private names: (.+?)|No private names)\. Checked on (\d+\.\d+\.\d+(?:, \d+\.\d+\.\d+)*)")
_GROUP = re.compile(r"([^\s,{}]+)\{([^{}]*)\}( \([^()]*\))?")
_COMMA = re.compile(r", (?![^()]*\))")
_NAME = re.compile(r'([\w*]+(?:[./][\w*]+)+(?:\["\w+"\])?)(?: \((\d+\.\d+(?:, \d+\.\d+)*)\))?')


def _spread(group: re.Match[str]) -> str:
    """``a.{b, c} (2.15)`` is ``a.b (2.15), a.c (2.15)``."""
    return ", ".join(f"{group[1]}{name}{group[3] or ''}" for name in _COMMA.split(group[2]))


def listed(path: Path) -> list[tuple[str, str]]:
    """The names that a file says it uses, each with the versions it was checked on. Raises ValueError."""
    docstring = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    paragraph = _PARAGRAPH.search(docstring)
    if paragraph is None:
        raise ValueError(f"{path.name}: its docstring does not say which private names, and on which versions")
    names, checked, found = paragraph[1] or "", paragraph[2].split(", "), []
    groups = 1
    while groups:  # the inner ones first
        names, groups = _GROUP.subn(_spread, names)
    for item in _COMMA.split(names) if names else ():
        name = _NAME.fullmatch(item)
        if name is None:
            raise ValueError(f"{path.name}: {item!r} is not a name")
        versions = [one for one in checked if not name[2] or one.rpartition(".")[0] in name[2].split(", ")]
        found.append((name[1], ", ".join(versions)))
    return found


def page(text: str) -> str:
    """The page with its lists made anew: a heading for each file, and its names below it."""
    parts = []
    for path in FILES:
        names = sorted(listed(path))
        checked = max((on for _, on in names), key=len, default="")
        rows = "".join(f"- `{name}`{'' if on == checked else f' ({on} only)'}\n" for name, on in names)
        if rows:
            parts.append(f"\n## {path.relative_to(ROOT / 'precompiled')}\n\nChecked on {checked}.\n\n{rows}")
    return text[: text.index("\n## ")] + "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
