"""What a benchmark says to whoever waits for it."""

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
    """Where progress and tables go, ``width`` wide where there is no terminal, and what says a line of progress.

    Says what is measured on, and whether it is fit for it. From here on SIGTERM is as Ctrl-C: daemons and directories
    of the sample in hand are cleaned up on the way out.
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
    """The names of ``--only`` (repeatable; a,b), by default all; ends the program for one that is not ``known``."""
    names = list(known)
    wanted = [name for item in only or [] for name in item.split(",")] or names
    if unknown := set(wanted) - set(names):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return wanted


def show(
    console: Console, headers: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str | None] = ()
) -> None:
    """A table; ``styles``: of its rows, where they are not all the same."""
    table = Table(*headers, box=None, pad_edge=False, header_style="bold")
    for row, style in zip(rows, styles or [None] * len(rows), strict=True):
        table.add_row(*row, style=style)
    console.print()
    console.print(table)


def show_results(console: Console, results: Sequence[Result], as_markdown: bool) -> None:
    """The figures, and what they come from; for docs/reference/benchmarks.md as well, where that is asked."""
    tables = (
        (HEADERS, [result.row() for result in results]),
        (RAW_HEADERS, [row for result in results for row in result.raw_row()]),
    )
    for headers, rows in tables:
        show(console, headers, rows)
    for headers, rows in tables if as_markdown else ():
        print(f"\n{markdown(headers, rows)}")
