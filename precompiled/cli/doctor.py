"""doctor: find problems that prevent graphs from being served, and explain how to fix them."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from collections.abc import Callable, Iterator

import click

from precompiled import parts
from precompiled.cli import checks_daemon, checks_hook, checks_host, checks_store
from precompiled.cli.app import command
from precompiled.cli.output import Output, table
from precompiled.core.check import Check
from precompiled.core.config import Settings
from precompiled.core.words import format_count

_Checks = Callable[[Settings], Iterator[Check]]


def groups() -> dict[str, _Checks]:
    """The groups of checks, in order: the core's, then those of the installed parts."""
    found: dict[str, _Checks] = {"hook": checks_hook.run, "daemon": checks_daemon.run, "store": checks_store.run}
    for name, entry in (("remote", parts.REMOTE_STATE), ("farm", parts.FARM_STATE)):
        if (part := entry.get()) is not None:
            found[name] = part.checks
    return found | {"host": checks_host.run}


MARKS = {"ok": "ok", "warn": "WARN", "fail": "FAIL"}


@command("doctor", examples=["precompiled doctor"])
def doctor_command(out: Output, settings: Settings) -> int:
    """Check this installation, and say how to fix it.

    Checks the hook, the daemon, the store, the remote, the farm and the host. The exit status is 1 if a check fails;
    warnings do not count.
    """
    if sys.stderr.isatty():
        click.echo("Checking the hook, the daemon, the store, the remote, the farm and the host ...", err=True)
    checks = run_checks(settings)
    out.result([dataclasses.asdict(check) for check in checks], lambda: _show(checks))
    return int(any(check.state == "fail" for check in checks))


def run_checks(settings: Settings) -> list[Check]:
    """Run all checks, in order. A check that raises counts as failed, and does not stop the other checks."""
    checks: list[Check] = []
    for name, group in groups().items():
        try:
            for check in group(settings):
                checks.append(check)
        except Exception as error:  # noqa: BLE001 - a broken check must not hide the others
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename}:{where.lineno}"
            checks.append(Check(name, "fail", f"this check failed with {error!r} ({place})", "Report this bug"))
    return checks


def _show(checks: list[Check]) -> None:
    rows = []
    for check in checks:
        text = check.message + (f"\n  -> {check.action}" if check.action else "")
        rows.append((MARKS[check.state], check.check, text))
    table(("", "CHECK", ""), rows)
    bad = [sum(check.state == state for check in checks) for state in ("fail", "warn")]
    warnings = format_count(bad[1], "warning", zero="no")
    click.echo(f"\n{format_count(len(checks), 'check')}, {bad[0] or 'none'} failed, {warnings}.")
