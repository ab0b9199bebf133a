"""The container that tests marked ``systemd`` share: booted once, with two users and the system daemon's unit."""

from __future__ import annotations

import os
from collections.abc import Iterator

import nspawn
import pytest

USERS = ("alice", "bob")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add the daemon's journal to the report of a failed test, because the journal is deleted with the container."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    machine = item.funcargs.get("machine") if hasattr(item, "funcargs") else None
    if report.failed and isinstance(machine, nspawn.Machine) and machine.leader:
        report.sections.append(("journal of precompiled.service", machine.journal("precompiled")[-8000:]))


def _cannot(reason: str) -> None:
    """Skip the test loudly, or fail it if PRECOMPILED_SYSTEMD_TESTS is "require"."""
    if os.environ.get("PRECOMPILED_SYSTEMD_TESTS") == "require":
        pytest.fail(f"tests/systemd must run here and cannot: {reason}")
    pytest.skip(f"NOT TESTED WITH A REAL SYSTEMD: {reason}")


@pytest.fixture(scope="session")
def machine() -> Iterator[nspawn.Machine]:
    try:
        nspawn.require_tools()
        booted = nspawn.Machine(nspawn.test_environment())
        booted.__enter__()
    except nspawn.CannotRun as error:
        _cannot(str(error))
        return
    # From here on, a problem is a failure instead of a reason to skip.
    try:
        booted.install_project()
        for user in USERS:
            booted.run("useradd", "--create-home", user)
        booted.run(booted.python, "-m", "precompiled.systemd.install")
        # Enable the hook for every process of this environment, as an administrator would.
        booted.run(booted.command, "enable")
        yield booted
    finally:
        booted.__exit__(None, None, None)


@pytest.fixture
def running(machine: nspawn.Machine) -> nspawn.Machine:
    """Return the container with a running system daemon, whatever the previous test has left."""
    machine.run("systemctl", "reset-failed", "precompiled", check=False)
    machine.run("systemctl", "start", "precompiled")
    return machine
