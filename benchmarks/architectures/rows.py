"""A table with a row for each architecture and task, whatever is in its rows: what is asked for, shown, returned."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from benchmarks.harness.console import chosen, show
from benchmarks.harness.result import markdown
from benchmarks.models.suite import TASKS
from benchmarks.models.zoo import ARCHITECTURES

Name = tuple[str, str]  # architecture, task


def rows_parser(prog: str, description: str | None) -> argparse.ArgumentParser:
    """What a table of architectures is asked with."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--only", action="append", metavar="NAME", help="these architectures (repeatable; a,b)")
    parser.add_argument("--task", choices=TASKS, help="this task only")
    parser.add_argument("--json", action="store_true", help="the rows as JSON on stdout; progress goes to stderr")
    parser.add_argument("--markdown", action="store_true", help="also print the table for docs/reference/benchmarks.md")
    return parser


def asked(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> list[Name]:
    """The rows that were asked for; ends the program for an unknown architecture."""
    wanted = chosen(parser, arguments.only, ARCHITECTURES)
    return [(name, task) for name in wanted for task in TASKS if arguments.task in (None, task)]


def conclude(
    console: Console, arguments: argparse.Namespace, headers: Sequence[str], rows: Sequence[Any], note: str = ""
) -> int:
    """The table, in red what is not ``right``, with remarks; the other forms that were asked for; the exit status."""
    show(console, headers, [row.cells() for row in rows], [None if row.right else "red" for row in rows])
    for row in rows:
        for text in row.remarks():
            console.print(f"{row.architecture} {row.task}: {text}", style="red", markup=False, highlight=False)
    right = sum(row.right for row in rows)
    console.print(f"\n{right} of {len(rows)} rows are as they should be{note}", highlight=False)
    if arguments.markdown:
        print(f"\n{markdown(headers, [row.cells() for row in rows])}")
    if arguments.json:
        print(json.dumps([{**asdict(row), "right": row.right} for row in rows], indent=1))
    return 0 if right == len(rows) else 1
