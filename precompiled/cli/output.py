"""The output of commands: one JSON document on stdout with `--json`, otherwise text and tables; errors on stderr."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import click

from precompiled.core.words import format_count, human_seconds, sentence

if TYPE_CHECKING:
    from rich.console import Console

Row = TypeVar("Row")
Callback = TypeVar("Callback", bound=Callable[..., Any])
# The width of a table in a pipe. It is large enough for every column.
PIPE_WIDTH = 1000
MIN_ROWS = 24  # of a terminal
ALL_SHOWS, JSON_HAS = "--all shows them", "--json has them all"
# How many digits of a key, or of an entry's digest, are shown.
SHOWN_DIGITS = 12


class Output:
    """Prints the result, notes and errors of one command."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def result(self, document: object, text: str | Callable[[], None], rest: str = "") -> None:
        """Print the command's result: `document` with `--json`, otherwise `text` (or call it, if it is a function).

        If ``rest`` is not empty, a terminal gets at most one screen, and ``rest`` says what shows the other lines.
        """
        if self.as_json:
            click.echo(json.dumps(document, indent=2, default=str))
        elif callable(text) and rest and sys.stdout.isatty():
            _print_screen(text, rest)
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


class _Captured(io.StringIO):
    """Text for a terminal, with its colours."""

    def isatty(self) -> bool:
        return True


def _print_screen(show: Callable[[], None], rest: str) -> None:
    """Print the lines of ``show`` that fit a screen together with the command and the next prompt."""
    with contextlib.redirect_stdout(_Captured()) as captured:
        show()
    lines = captured.getvalue().splitlines()
    shown = fitting(lines, 0)
    if shown < len(lines):
        shown = fitting(lines, 1)
        while shown and (not lines[shown - 1] or lines[shown - 1].endswith(":")):  # a heading without its lines
            shown -= 1
    for line in lines[:shown]:
        click.echo(line)
    if left := len(lines) - shown:
        click.echo(f"and {format_count(left, 'more line')}: {rest}")


def fitting(lines: Sequence[str], more: int) -> int:
    """How many lines fit the terminal together with ``more`` further rows, the command and the next prompt."""
    size = shutil.get_terminal_size()
    ends = accumulate(max(1, -(-len(click.unstyle(line)) // size.columns)) for line in lines)
    room = max(size.lines, MIN_ROWS) - 2 - more
    return sum(end <= room for end in ends)


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


def all_option(text: str) -> Callable[[Callback], Callback]:
    """Add the option --all to a command. Without this option, the command shows a part of its rows."""
    return click.option("--all", "show_all", is_flag=True, help=text)


def fits_screen(show_all: bool) -> bool:
    """Whether to print only what fits a screen. True on a terminal, except with --all. A pipe gets everything."""
    return not show_all and sys.stdout.isatty()


def shortened(rows: Sequence[Row], most: int | None, *, indent: str = "") -> Iterator[Row]:
    """Yield at most ``most`` rows. After the caller has taken these rows, print how many are left out."""
    yield from rows[:most]
    say_left_out(rows, most, indent=indent)


def say_left_out(
    rows: Sequence[object], most: int | None, rest: str = f"more: {JSON_HAS}", *, indent: str = ""
) -> None:
    """Print how many rows are left out, if only ``most`` rows are shown. None: all are shown."""
    if most is not None and len(rows) > most:
        click.echo(f"{indent}and {len(rows) - most} {rest}")


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Print one name and value per line, aligned."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}".rstrip())


def human_age(moment: float) -> str:
    """The time since ``moment`` (seconds since the epoch), as text."""
    return human_seconds(max(0.0, time.time() - moment))
