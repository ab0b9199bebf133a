"""Fixtures of the whole suite."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # support_*.py

from support_host import SHARED, THERE, Host, new_host

# hypothesis must not fail an example for its time, which depends on the load of the machine.
settings.register_profile("any-pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-pace")


# Deadline of a test run, in seconds since the epoch. Later tests are skipped. tools/test_all.py sets the deadline,
# because a killed pytest reports none of its finished tests.
UNTIL = float(os.environ.get("PRECOMPILED_TESTS_UNTIL", "inf"))
PART = "PRECOMPILED_TESTS_PART"  # "2/3": only every third test, beginning with the second (tools/test_all.py)
NO_TIME = "no time was left for it (PRECOMPILED_TESTS_UNTIL)"


# nohup and a shell's background jobs ignore these signals, and child processes inherit this. A handler that does
# nothing is not inherited, so programs of tests react to Ctrl-C as in a terminal.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, lambda number, frame: None)


def pytest_configure(config: pytest.Config) -> None:
    """Creates the directory that the parallel processes of this run share. The processes inherit the variable."""
    if SHARED not in os.environ:
        directory = tempfile.TemporaryDirectory(prefix="pc-shared-")
        os.environ[SHARED] = directory.name

        def remove() -> None:
            del os.environ[SHARED]
            directory.cleanup()

        config.add_cleanup(remove)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = map(int, os.environ.get(PART, "1/1").split("/"))
    others = [item for number, item in enumerate(items) if number % parts != part - 1]
    config.hook.pytest_deselected(items=others)
    items[:] = items[part - 1 :: parts]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    if time.time() > UNTIL:
        pytest.skip(NO_TIME)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """If a test failed, adds the daemon logs and failure records of its hosts to its report.

    Without these sections the report does not show why a worker could not compile a graph.
    """
    report = yield
    if report.failed:
        report.sections += [(f"host {host.root}", host.said()) for host in THERE]
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the seconds and the number of tests of each folder, summed over the parallel test processes."""
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                group = report.nodeid.split("::", 1)[0].rpartition("/")[0]
                seconds[group] += report.duration  # type: ignore[assignment]
                tests[group] += report.when == "call"
    if len(tests) > 1:
        terminalreporter.section("seconds by folder")
        for group, amount in seconds.most_common():
            terminalreporter.write_line(f"{amount:8.0f} s {tests[group]:6d} tests  {group}")


@pytest.fixture
def tries(record_property: Callable[[str, object], None], pytestconfig: pytest.Config) -> Callable[..., int]:
    """Returns a function that chooses how often a test provokes its fault: ``tries(few, many, most)``.

    The function returns ``few`` in `make test`, ``many`` in `make test-faults`, and ``most`` with --nightly.
    faults/plugin.py adds these options, and prints the number.
    """

    def choose(few: int, many: int, most: int = 0) -> int:
        if pytestconfig.getoption("short", True):  # also if the plugin is not loaded
            number = few
        else:
            number = (most or many) if pytestconfig.getoption("nightly") else many
        record_property("tried", number)
        return number

    return choose


@pytest.fixture
def host() -> Iterator[Host]:
    """A host for one test that starts, watches or ends a daemon. The host has an empty store and no daemon."""
    with new_host() as found:
        yield found


@pytest.fixture(scope="session")
def with_daemon() -> Iterator[Host]:
    """A host for the whole session. This host's daemon and warm worker serve all tests that do not start a daemon."""
    with new_host() as found:
        found.start_daemon()
        yield found


@pytest.fixture
def served(with_daemon: Host) -> Iterator[Host]:
    """A host for one test, with an empty store. The daemon of ``with_daemon`` serves it."""
    with new_host(with_daemon) as found:
        yield found


@pytest.fixture(scope="module")
def shared_host(with_daemon: Host) -> Iterator[Host]:
    """A host that all tests of a module share. The daemon of ``with_daemon`` serves it."""
    with new_host(with_daemon) as found:
        yield found


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """Initialises torch.distributed with a gloo group whose only rank is this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'rendezvous'}", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
