#!/usr/bin/env python3
"""Make the list of docs/reference/private-torch-names.md from docstrings: `PYTHON tools/private_names_page.py`.

In folders for private names, the docstring of each file lists the names that it uses, and the checked versions::

    Private names: torch._guards.{TracingContext, tracing}, torch._dynamo.source.{Plain, Sliced (2.13, 2.15)}.
    Checked on 2.11.0, 2.13.0, 2.15.0.

or "No private names. Checked on ...". Parentheses list the versions that have a name, if not all do.
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "private-torch-names.md"
FILES = sorted(
    path
    for folder in ("precompiled/torch_internals", "precompiled/packages/dynamo")
    for path in (ROOT / folder).rglob("[!_]*.py")
)

_PARAGRAPH = re.compile(r"(?:Private names: (.+?)|No private names)\. Checked on (\d+\.\d+\.\d+(?:, \d+\.\d+\.\d+)*)")
_GROUP = re.compile(r"([^\s,{}]+)\{([^{}]*)\}( \([^()]*\))?")
_COMMA = re.compile(r", (?![^()]*\))")
_NAME = re.compile(r'([\w*]+(?:[./][\w*]+)+(?:\["\w+"\])?)(?: \((\d+\.\d+(?:, \d+\.\d+)*)\))?')


def _spread(group: re.Match[str]) -> str:
    """Expand ``a.{b, c} (2.15)`` to ``a.b (2.15), a.c (2.15)``."""
    return ", ".join(f"{group[1]}{name}{group[3] or ''}" for name in _COMMA.split(group[2]))


def listed(path: Path) -> list[tuple[str, str]]:
    """Return a file's private names with their checked versions. Raises ValueError for a malformed paragraph."""
    docstring = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    paragraph = _PARAGRAPH.search(docstring)
    if paragraph is None:
        raise ValueError(f"{path.name}: its docstring does not say which private names, and on which versions")
    names, checked, found = paragraph[1] or "", paragraph[2].split(", "), []
    groups = 1
    while groups:  # inner groups first
        names, groups = _GROUP.subn(_spread, names)
    for item in _COMMA.split(names) if names else ():
        name = _NAME.fullmatch(item)
        if name is None:
            raise ValueError(f"{path.name}: {item!r} is not a name")
        versions = [one for one in checked if not name[2] or one.rpartition(".")[0] in name[2].split(", ")]
        if not versions:
            raise ValueError(f"{path.name}: {item!r} is for a version that it was not checked on")
        found.append((name[1], ", ".join(versions)))
    return found


def _module(name: str) -> str:
    """Return the name of the module: ``torch.a`` for ``torch.a.Class.b``, and also for ``torch.a.b``."""
    parts = name.split(".")
    classes = (at for at, part in enumerate(parts) if part != "_C" and part.lstrip("_*")[:1].isupper())
    return ".".join(parts[: next(classes, len(parts) - 1)])


def page(text: str) -> str:
    """Return the page with new lists: all files' names, by checked versions and by module of torch."""
    versions: dict[str, set[str]] = {}
    for path in FILES:
        for name, on in listed(path):
            versions.setdefault(name, set()).update(on.split(", "))
    sections: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for name, checked in sorted(versions.items()):
        modules = sections.setdefault(tuple(sorted(checked)), {})
        modules.setdefault(_module(name), []).append(f"`{name.removeprefix(f'{_module(name)}.')}`")
    wrap = textwrap.TextWrapper(120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    parts = [text[: text.index("\n## ")]]
    for checked, modules in sorted(sections.items(), key=lambda section: (-len(section[0]), section[0])):
        rows = (f"- `{module}`: {', '.join(names)}" for module, names in sorted(modules.items()))
        parts.append(f"\n## Checked on {', '.join(checked)}\n\n" + "".join(f"{wrap.fill(row)}\n" for row in rows))
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
