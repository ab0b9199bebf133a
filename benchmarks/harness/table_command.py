"""Runs a command that measures a table: parses options, shows progress, prints the report, and writes files."""

from __future__ import annotations

import argparse
import itertools
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.harness.console import begin, show
from benchmarks.harness.effort import Say
from benchmarks.harness.hosts import BenchmarkError, Host, fresh_host
from benchmarks.harness.result import markdown, write_part


@dataclass(kw_only=True)
class MeasuredRow(ABC):
    """A row of a table. Subclasses define ``cells``, ``name`` and ``right``."""

    different: list[str] = field(default_factory=list)  # results that differ from the expected ones
    error: str = ""  # why the measurement of the row did not finish

    @abstractmethod
    def cells(self) -> list[str]: ...

    def remarks(self) -> list[str]:
        return [*filter(None, [self.error]), *self.different[:4]]


AnyRow = TypeVar("AnyRow", bound=MeasuredRow)


@dataclass
class Report:
    """The output of a command. A remark is a pair (text, style)."""

    passed: bool
    totals: str = ""
    tables: list[tuple[list[str], list[list[str]]]] = field(default_factory=list)  # (headers, rows)
    styles: list[str | None] = field(default_factory=list)  # one for each row of the first table
    remarks: list[tuple[str, str | None]] = field(default_factory=list)
    record: Any = None  # the value that --json writes
    parts: Sequence[str] = ()  # what --docs writes; the tables by default


def report_rows(
    headers: list[str],
    rows: Sequence[Any],
    totals: str = "",
    *,
    passed: bool,
    parts: Sequence[str] = (),
    record: Any = None,
) -> Report:
    """Make a report with one table. ``rows`` are dataclasses with the methods of MeasuredRow. Wrong rows are red."""
    return Report(
        passed,
        totals,
        [(headers, [row.cells() for row in rows])],
        [None if row.right else "red" for row in rows],
        [(f"{row.name}: {text}", "red") for row in rows for text in row.remarks()],
        [asdict(row) for row in rows] if record is None else record,
        parts,
    )


def measure_rows(
    rows: Sequence[AnyRow], measure: Callable[[Host, AnyRow], None], say: Say, *, clients: int = 1
) -> list[AnyRow]:
    """Measure the rows on one host with a daemon, ``clients`` at a time. A BenchmarkError ends only its row."""
    done = itertools.count(1)

    def measure_one(row: AnyRow) -> AnyRow:
        try:
            measure(host, row)
        except BenchmarkError as error:
            row.error = str(error)
        say(f"{next(done)}/{len(rows)} {'  '.join(row.cells())}")
        return row

    with fresh_host() as host:
        host.start_daemon()
        if clients == 1:
            return [measure_one(row) for row in rows]
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(measure_one, rows))


def run_table(
    arguments: argparse.Namespace,
    measure: Callable[[Say], Report],
    *,
    width: int = 200,
    mark: str = "",
    page: str = "reference/benchmarks.md",
) -> int:
    """Measure, print the report, write the files that ``arguments`` name. Returns the exit status.

    ``width``: columns of the output without a terminal. ``mark``, ``page``: the part of docs/ that --docs writes.
    """
    options = vars(arguments)
    target = options.get("json")  # a path; True for stdout
    console, say = begin(width, stderr=target is True)
    started = time.monotonic()
    try:
        report = measure(say)
    except BenchmarkError as error:
        console.print(str(error), style="bold red", markup=False, highlight=False)
        return 1
    for number, (headers, rows) in enumerate(report.tables):
        show(console, headers, rows, () if number else report.styles)
    for text, style in report.remarks:
        console.print(text, style=style, markup=False, highlight=False)
    console.print(f"\n{report.totals} {time.monotonic() - started:.0f} s".replace("\n ", "\n"), highlight=False)
    if options.get("markdown"):
        for headers, rows in report.tables:
            print(f"\n{markdown(headers, rows)}")
    if target is True:
        print(json.dumps(report.record, indent=1))
    elif target:
        target.write_text(json.dumps(report.record, indent=1))
    if options.get("docs"):
        write_part(mark, report.parts or [markdown(*table) for table in report.tables if table[1]], page)
    return 0 if report.passed else 1


def add_only(parser: argparse.ArgumentParser, rows: str) -> None:
    parser.add_argument("--only", action="append", metavar="NAME", help=f"{rows} (repeatable; a,b)")


def add_every(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth row: a look, no figure")


def add_files(parser: argparse.ArgumentParser, *, json: str, read: str = "", docs: str) -> None:
    """Add the options for files. ``json``, ``read``: help of --json and --read. ``docs``: what --docs writes."""
    parser.add_argument("--json", type=Path, metavar="FILE", help=json)
    if read:
        parser.add_argument("--read", action="append", type=Path, default=[], metavar="FILE", help=read)
    parser.add_argument("--docs", action="store_true", help=f"write the {docs}")


def add_markdown(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--markdown", action="store_true", help="also print the table for docs/reference/benchmarks.md")


def read_records(arguments: argparse.Namespace) -> list[Any]:
    """Return the contents of the --read files. The default is the --json file, if an earlier run wrote it."""
    paths = arguments.read or [path for path in [arguments.json] if path and path.exists()]
    return [json.loads(path.read_text()) for path in paths]
