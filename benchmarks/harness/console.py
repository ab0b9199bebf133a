"""Prints progress, messages and tables on the terminal."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.harness.effort import Say
from benchmarks.harness.result import HEADERS, RAW_HEADERS, Result, machine, markdown

QUIET_LOAD = 0.5


def begin(width: int, *, stderr: bool = False) -> tuple[Console, Say]:
    """Return a console for progress and tables, and a function that prints a line of progress.

    Prints the machine's properties, and a warning if its load makes the figures unreliable. If there is no
    terminal, the console is ``width`` columns wide. After this call, SIGTERM raises SystemExit. Like Ctrl-C, the
    exception unwinds the stack, which removes the daemons and the directories of the current sample.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(stderr=stderr)
    console = console if console.is_terminal else Console(width=width, stderr=stderr)
    facts = machine()
    console.print(
        f"{facts['cores']} cores, {facts['cpu']}; torch {facts['torch']} with {facts['threads']} threads, "
        f"Python {facts['python']}, {facts['commit']}",
        highlight=False,
    )
    if facts["load"] > QUIET_LOAD:
        console.print(f"The machine is not quiet (load {facts['load']:.1f}): these figures are noise.", style="yellow")
    return console, lambda text: console.print(f"    {text}", markup=False, highlight=False)


def chosen(parser: argparse.ArgumentParser, only: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """Return the names given by ``--only`` (repeatable; a,b), or all names. Exits if a name is not in ``known``."""
    names = list(known)
    wanted = [name for item in only or [] for name in item.split(",")] or names
    if unknown := set(wanted) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return wanted


def show(
    console: Console, headers: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str | None] = ()
) -> None:
    """Print a table. ``styles``: one for each row, or empty."""
    table = Table(*headers, box=None, pad_edge=False, header_style="bold")
    for row, style in zip(rows, styles or [None] * len(rows), strict=True):
        table.add_row(*row, style=style)
    console.print()
    console.print(table)


def show_results(console: Console, results: Sequence[Result], as_markdown: bool) -> None:
    """Print the figures and raw samples; with ``as_markdown``, also tables for docs/reference/benchmarks.md."""
    tables = (
        (HEADERS, [result.row() for result in results]),
        (RAW_HEADERS, [row for result in results for row in result.raw_row()]),
    )
    for headers, rows in tables:
        show(console, headers, rows)
    for headers, rows in tables if as_markdown else ():
        print(f"\n{markdown(headers, rows)}")
