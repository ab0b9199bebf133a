"""Defines the rows of a table of architectures, one for each architecture and task, and parses the command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.harness.console import chosen
from benchmarks.harness.table_command import Report, add_markdown, add_only, report_rows
from benchmarks.models.suite import TASKS
from benchmarks.models.zoo import ARCHITECTURES

Name = tuple[str, str]  # architecture, task


@dataclass
class ArchitectureRow:
    """One architecture in training or in inference."""

    architecture: str
    task: str
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        self.kind = ARCHITECTURES[self.architecture].kind

    @property
    def name(self) -> str:
        return f"{self.architecture} {self.task}"


def build_parser(folder: str, description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{folder}", description=description)
    add_only(parser, "these architectures")
    parser.add_argument("--task", choices=TASKS, help="this task only")
    parser.add_argument("--json", action="store_true", help="the rows as JSON on stdout; progress goes to stderr")
    add_markdown(parser)
    return parser


def choose_rows(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> list[Name]:
    """Return the rows of --only and --task. An unknown architecture ends the program."""
    wanted = chosen(parser, arguments.only, ARCHITECTURES)
    return [(name, task) for name in wanted for task in TASKS if arguments.task in (None, task)]


def report_architectures(headers: list[str], rows: Sequence[Any]) -> Report:
    right = sum(row.right for row in rows)
    return report_rows(
        headers,
        rows,
        f"{right} of {len(rows)} rows are as they should be.",
        passed=right == len(rows),
        record=[{**asdict(row), "right": row.right} for row in rows],
    )
