"""A pytest plugin (`make test-faults`): prints for each kind of fault what the tests tried, what failed, and the time.

A test belongs to the kind that its marker names (``@pytest.mark.fault("worker-dies")``). The fixture ``tries`` of
tests/conftest.py says how often a test provokes its fault: rarely in `make test`, and often here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.harness.result import ROOT, machine, markdown, write_part

PAGE = "reference/faults.md"
# The kinds of faults, in the order of the page, and what they are.
KINDS = {
    "worker-dies": "A worker dies while it compiles",
    "compiler-dies": "All workers, the guardian or a compiler child die",
    "deadly-graph": "A graph kills each worker that compiles it",
    "killed-at-a-call": "A process is killed at any system call of a write",
    "daemon-dies": "The daemon dies, and workers and clients remain",
    "hangs": "A worker, its compiler or a file hangs",
    "memory": "Memory runs out",
    "failing-calls": "A system call fails: ENOSPC, EIO, EROFS, EDQUOT, EMFILE, ENFILE, EINTR, EACCES",
    "altered-bytes": "Bits of stored files change",
    "damaged-files": "Files are cut, extended, exchanged, or of another format",
    "bombs": "Files and messages claim huge sizes, counts or depths",
    "untrusted-files": "Owners, modes, links and mounts are wrong",
    "frames": "Peers send arbitrary messages",
    "load": "Many clients, slow readers and storms of connections",
    "start-races": "Daemons start at once, beside stale sockets and during a stop",
    "forks": "The program forks, spawns or starts subinterpreters",
    "version-skew": "Client, daemon, torch and formats have different versions",
    "watch": "Watch mode meets limits, overflows and replaced folders",
    "clocks": "Clocks jump, and the host is suspended",
    "file-systems": "Unusual file systems, paths, locales and users",
    "eviction": "Artifacts are evicted under readers",
    "soak": "Random faults beside real programs",
    "packages": "Programs and their inputs change between runs",
    "program": "The program itself raises, is interrupted or exits",
    "remote": "The remote or the farm fails at any request",
}
HEADERS = ("fault", "tests", "tried", "failed", "not run here", "seconds", "at")


@dataclass
class Row:
    tests: int = 0
    tried: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def has_run(self) -> bool:
        return bool(self.tests or self.skipped)

    def cells(self, commit: str) -> list[str]:
        numbers = (self.tests, self.tried, self.failed, self.skipped, round(self.seconds))
        return [*(f"{number:,}" for number in numbers), commit]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault", action="append", default=[], choices=list(KINDS), help="only tests of this kind")
    parser.addoption("--docs", action="store_true", help=f"write the rows of the kinds that ran into docs/{PAGE}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Selects the tests of faults, and adds each test's kind to the test's reports."""
    wanted = set(config.getoption("fault") or KINDS)
    selected = []
    for item in items:
        kinds = [mark.args[0] for mark in item.iter_markers("fault")]
        unknown = set(kinds) - set(KINDS)
        if unknown:
            raise pytest.UsageError(
                f"{item.nodeid}: unknown kinds of faults: {sorted(unknown)} (tests/faults/plugin.py)"
            )
        if wanted.intersection(kinds):
            item.user_properties.append(("fault", kinds[0]))
            selected.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in selected])
    items[:] = selected


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    facts = machine()
    cells = {KINDS[kind]: row.cells(facts["commit"]) for kind, row in _rows(terminalreporter).items() if row.has_run()}
    terminalreporter.section("faults")
    terminalreporter.write_line(_table(cells))
    if config.getoption("docs"):
        parts = [f"On {facts['cores']} cores ({facts['cpu']}):", _table(_rows_of_the_page() | cells)]
        write_part("make test-faults ARGS=--docs", parts, PAGE)


def _rows_of_the_page() -> dict[str, list[str]]:
    """Return the rows of earlier runs. A run of all kinds takes too long, so a row stays until its kind runs again."""
    lines = (ROOT / "docs" / PAGE).read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {fault: cells for fault, *cells in rows if fault in KINDS.values()}


def _table(cells: dict[str, list[str]]) -> str:
    return markdown(HEADERS, [[fault, *cells[fault]] for fault in KINDS.values() if fault in cells])


def _rows(terminalreporter: Any) -> dict[str, Row]:
    rows = {kind: Row() for kind in KINDS}
    for report in _reports(terminalreporter):
        properties = dict(report.user_properties)
        row = rows[properties["fault"]]
        row.seconds += report.duration
        row.failed += report.failed
        row.skipped += report.skipped
        if report.when == "call" and not report.skipped:
            row.tests += 1
            row.tried += properties.get("tried", 1)
    return rows


def _reports(terminalreporter: Any) -> Iterator[pytest.TestReport]:
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "fault" in dict(report.user_properties):
                yield report
