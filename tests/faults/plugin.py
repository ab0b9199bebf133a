"""A pytest plugin (`make test-faults`): prints for each kind of fault what the tests tried, what failed, and the time.

A test belongs to the kind that its marker names (``@pytest.mark.fault("worker-dies")``). The fixture ``tries`` of
tests/conftest.py says how often a test provokes its fault: rarely in `make test`, and often here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
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
# For each kind, the faults of precompiled that the kind's tests have found: the commit that mends a fault, and the
# fault.
FOUND: dict[str, list[tuple[str, str]]] = {
    "worker-dies": [
        ("86fa5dc0", "a death before the worker had read its graph counted against the graph"),
        ("f5fbb29a", "a job that the worker had read, but not begun, counted as begun"),
    ],
    "daemon-dies": [("ca5d592b", "workers of low priority outlived their daemon on a busy host")],
    "hangs": [
        ("bd6131c2", "a FIFO in place of a settings file, a log or a helper's state blocked the process"),
        ("ee17a84a", "the record of a compile that took too long did not name the place"),
    ],
    "memory": [("90f0c289", "a daemon or worker without memory for a message or a graph ended")],
    "failing-calls": [("fa7445ed", "a call that failed between open and use of a file left its descriptor open")],
    "damaged-files": [
        ("38661f15", "a failure record whose texts are numbers was accepted"),
        ("38661f15", "a failure record whose times are infinite was kept for ever"),
    ],
    "bombs": [
        ("38661f15", "deeply nested JSON raised RecursionError in a client, a helper and the watcher"),
        ("38661f15", "a reader reserved the largest allowed size before it read a small file"),
        ("38661f15", "deeply nested TOML raised RecursionError"),
    ],
    "frames": [
        ("8b1ee223", "the daemon queued the requests that its watcher had not read without a limit"),
        ("8b292113", "a registration with a long path ended the watcher, and each later watcher"),
    ],
    "untrusted-files": [("38661f15", "a listing of packages followed a link to another directory")],
    "file-systems": [("8554de0b", "an artifact in a lower layer of an overlay could not be quarantined or evicted")],
    "eviction": [
        ("b89a3dcb", "a publish failed if an eviction emptied its slot at the moment of its rename"),
        ("6e7d47ac", "an eviction removed files of a directory that a writer was about to publish"),
    ],
    "packages": [("fdc78ead", "a module that was imported anew at the old address kept its old text")],
    "program": [("6ba4ed4c", "precompiled swallowed the exception of a signal handler that interrupted its code")],
}
OTHER_SUITES = ("integration", "slow", "buckets", "versions")  # which `make test` leaves out
HEADERS = ("fault", "tests", "tried", "failed", "not run here", "found", "seconds", "at")


@dataclass
class Row:
    tests: int = 0
    tried: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    measured: list[str] = field(default_factory=list)

    def has_run(self) -> bool:
        return bool(self.tests or self.skipped)

    def cells(self, commit: str) -> dict[str, str]:
        numbers = (self.tests, self.tried, self.failed, self.skipped, round(self.seconds))
        names = ("tests", "tried", "failed", "not run here", "seconds")
        counts = {name: f"{number:,}" for name, number in zip(names, numbers, strict=True)}
        return {**counts, "at": commit}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fault", action="append", default=[], choices=list(KINDS), help="only tests of this kind")
    parser.addoption("--short", action="store_true", help="only what `make test` runs, and as often")
    parser.addoption("--nightly", action="store_true", help="an hour of soak, of evictions and of changed inputs")
    parser.addoption("--docs", action="store_true", help=f"write the rows of the kinds that ran into docs/{PAGE}")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skips files without tests of faults, because their imports take longer than the short form's tests."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and "mark.fault(" not in collection_path.read_text() else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Selects the tests of faults, and adds each test's kind to the test's reports."""
    wanted = set(config.getoption("fault") or KINDS)
    selected = []
    for item in items:
        if config.getoption("short") and any(item.get_closest_marker(suite) for suite in OTHER_SUITES):
            continue
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
    rows = {KINDS[kind]: row for kind, row in _rows(terminalreporter).items() if row.has_run()}
    cells = {fault: row.cells(facts["commit"]) for fault, row in rows.items()}
    terminalreporter.section("faults")
    terminalreporter.write_line(_table(cells))
    for fault, row in rows.items():
        for measured in row.measured:
            terminalreporter.write_line(f"{fault}: {measured}")
    for line, count in sorted(Counter(_not_run(terminalreporter)).items()):
        terminalreporter.write_line(f"NOT RUN HERE: {line} ({count} tests)", yellow=True)
    if config.getoption("docs"):
        parts = [f"On {facts['cores']} cores ({facts['cpu']}):", _table(_rows_of_the_page() | cells)]
        write_part("make test-faults ARGS=--docs", parts, PAGE)


def _not_run(terminalreporter: Any) -> Iterator[str]:
    """Yield the kind and the reason of each test or module that was skipped."""
    for report in terminalreporter.stats.get("skipped", ()):
        kind = dict(getattr(report, "user_properties", ())).get("fault", report.nodeid)
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        yield f"{kind}: {reason.removeprefix('Skipped: ')}"


def _rows_of_the_page() -> dict[str, dict[str, str]]:
    """Return the rows of earlier runs. A run of all kinds takes too long, so a row stays until its kind runs again."""
    lines = (ROOT / "docs" / PAGE).read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    headers = next(row for row in rows if row[0] == HEADERS[0])
    return {row[0]: dict(zip(headers, row, strict=True)) for row in rows if row[0] in KINDS.values()}


def _table(cells: dict[str, dict[str, str]]) -> str:
    rows = []
    for kind, fault in KINDS.items():
        if fault in cells:
            found = {"fault": fault, "found": str(len(FOUND.get(kind, [])))}
            rows.append([{**cells[fault], **found}[header] for header in HEADERS])
    return markdown(HEADERS, rows)


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
            row.measured += [properties["measured"]] if "measured" in properties else []
    return rows


def _reports(terminalreporter: Any) -> Iterator[pytest.TestReport]:
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "fault" in dict(report.user_properties):
                yield report
