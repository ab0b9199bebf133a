#!/usr/bin/env python3
"""Make docs/reference/api.md, the API reference, from docstrings: `PYTHON tools/api_page.py`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "api.md"
sys.path.insert(0, str(ROOT))

import precompiled  # noqa: E402 - needs the sys.path entry above

_HEAD = """\
# What programs may call

Names on this page and in [cli.md](cli.md) are stable. Others may change with any
version ([upgrading.md](../guides/upgrading.md)). No function imports torch before your program does.
"""
_ERRORS = (precompiled.PrecompiledError, precompiled.ConfigError, precompiled.PackageError, precompiled.NotServed)


def page() -> str:
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield _HEAD
    for name in precompiled.__all__:
        function = getattr(precompiled, name)
        if inspect.isfunction(function):
            yield f"## `precompiled.{name}{_signature(function)}`\n"
            yield _text(function)
    yield '## `torch.compile(model, backend="precompiled")`\n'
    yield "Let precompiled serve only this model, without the hook. The arguments `mode=` and `options=` also work.\n"
    for kind, gives in ((precompiled.GraphReport, "report"), (precompiled.FunctionReport, "package_report")):
        yield f"## `{kind.__name__}`, of `precompiled.{gives}()`\n"
        yield _text(kind)
        yield "Fields:\n"
        comments = _comments(kind)
        fields = [(item.name, f"`{item.name}: {item.type}`") for item in dataclasses.fields(kind)]
        plain = ", ".join(text for name, text in fields if name not in comments)
        lines = textwrap.fill(plain.replace(": ", ":\xa0"), 118, break_on_hyphens=False).replace("\xa0", " ")
        yield textwrap.indent(lines, "  ").replace("  ", "- ", 1)
        yield from (f"- {text}: {comments[name]}" for name, text in fields if name in comments)
        yield ""
    yield "## Errors\n"
    yield (
        "Each error has a stable `code` ([reasons.md](reasons.md)), a `message`, and an `action` that says what you can"
        " do.\n"
    )
    for error in _ERRORS:
        bases = ", ".join(base.__name__ for base in error.__bases__)
        yield f"### `{error.__name__}({bases})`\n"
        yield _text(error)


def _signature(function: Any) -> str:
    # Annotations are strings, because the package avoids imports. Omit their quotes.
    return str(inspect.signature(function)).replace("'", "").replace('"', "")


def _text(thing: Any) -> str:
    text = re.sub(r"``(.+?)``", r"`\1`", inspect.getdoc(thing) or "")
    return re.sub(r"\(docs/guides/([\w-]+\.md)\)", r"([\1](../guides/\1))", text) + "\n"


def _comments(kind: type) -> dict[str, str]:
    """Return the comments after a dataclass's fields, by field."""
    found = re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", inspect.getsource(kind), re.MULTILINE)
    return dict(found)


if __name__ == "__main__":
    PAGE.write_text(page())
