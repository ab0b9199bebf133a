"""The container that the tests marked ``systemd`` share: booted once, with two users and the system daemon's unit."""

from __future__ import annotations

import os
from collections.abc import Iterator

import nspawn
import pytest

USERS = ("alice", "bob")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failed test shows the daemon's journal, which is gone with the container otherwise."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    machine = item.funcargs.get("machine") if hasattr(item, "funcargs") else None
    if report.failed and isinstance(machine, nspawn.Machine) and machine.leader:
        report.sections.append(("journal of precompiled.service", machine.journal("precompiled")[-8000:]))


def _cannot(reason: str) -> None:
    """Skip, loudly; or fail, where somebody relies on these tests."""
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
    # From here on, whatever goes wrong is a failure and no reason to skip.
    try:
        booted.install_project()
        for user in USERS:
            booted.run("useradd", "--create-home", user)
        booted.run(booted.python, "-m", "precompiled.systemd.install")
        # The hook for every process of this environment, as an administrator would switch it on.
        booted.run(booted.command, "enable")
        yield booted
    finally:
        booted.__exit__(None, None, None)


@pytest.fixture
def running(machine: nspawn.Machine) -> nspawn.Machine:
    """The container, with the system daemon running, whatever the test before has left."""
    machine.run("systemctl", "reset-failed", "precompiled", check=False)
    machine.run("systemctl", "start", "precompiled")
    return machine
