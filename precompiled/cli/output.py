"""The output of commands: one JSON document on stdout with `--json`, otherwise text and tables; errors on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from precompiled.core.words import human_seconds, sentence

if TYPE_CHECKING:
    from rich.console import Console

# The width of a table in a pipe, which fits every column.
PIPE_WIDTH = 1000
# Shown digits of a key or an entry's digest.
SHOWN_DIGITS = 12


class Output:
    """Prints the result, notes and errors of one command."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def result(self, document: object, text: str | Callable[[], None]) -> None:
        """Print the command's result: `document` with `--json`, otherwise `text` (or call it, if it is a function)."""
        if self.as_json:
            click.echo(json.dumps(document, indent=2, default=str))
        elif callable(text):
            text()
        else:
            click.echo(text)

    def note(self, text: str) -> None:
        """Print a text that is not part of the result, to stderr."""
        click.echo(text, err=True)

    def error(self, code: str, message: str, action: str) -> None:
        """Print an error and the next step to stderr; with `--json`, also a document to stdout."""
        if self.as_json:
            click.echo(json.dumps({"error": {"code": code, "message": message, "action": action}}, indent=2))
        click.echo(f"precompiled: {sentence(message)}", err=True)
        if action:
            click.echo(f"  {sentence(action)}", err=True)


def console() -> Console:
    # rich is imported here, because importing it takes longer than most commands.
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a plain table. The columns named in `right` are right-aligned."""
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
    # rich pads each line to the table's width. A terminal would wrap the padding, and a file would keep it.
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Print one name and value per line, aligned."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}".rstrip())


def human_age(moment: float) -> str:
    """The time since ``moment`` (seconds since the epoch), as text."""
    return human_seconds(max(0.0, time.time() - moment))
