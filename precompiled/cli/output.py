"""How commands speak: one JSON document on stdout with `--json`, else text and tables; errors on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from precompiled.core.words import human_seconds, sentence

if TYPE_CHECKING:
    from rich.console import Console

# A pipe has no width: columns are never cut there.
PIPE_WIDTH = 1000
# Of a key, or of an entry's digest.
SHOWN_DIGITS = 12


class Output:
    """The voice of one command."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def result(self, document: Any, text: str | Callable[[], None]) -> None:
        """The command's answer: `document` for programs, `text` (or what it prints) for people."""
        if self.as_json:
            click.echo(json.dumps(document, indent=2, default=str))
        elif callable(text):
            text()
        else:
            click.echo(text)

    def note(self, text: str) -> None:
        """Something worth saying that is not the answer."""
        click.echo(text, err=True)

    def error(self, code: str, message: str, action: str) -> None:
        """What is wrong and what to do next: on stderr, and with `--json` as a document on stdout too."""
        if self.as_json:
            click.echo(json.dumps({"error": {"code": code, "message": message, "action": action}}, indent=2))
        click.echo(f"precompiled: {sentence(message)}", err=True)
        if action:
            click.echo(f"  {sentence(action)}", err=True)


def console() -> Console:
    # rich is imported only where a table is shown: it takes longer than most commands.
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a plain table; the columns named in `right` are aligned to the right."""
    from rich.markup import escape
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(escape(cell) for cell in row))
    screen = console()
    with screen.capture() as captured:
        screen.print(shown)
    # rich fills every line up to the table's width, which a terminal would wrap and a file would keep.
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one below the other."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}".rstrip())


def human_age(moment: float) -> str:
    """How long ago that was; ``moment``: seconds since the epoch."""
    return human_seconds(max(0.0, time.time() - moment))
