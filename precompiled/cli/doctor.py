"""doctor: find problems that prevent graphs from being served, and explain how to fix them."""

from __future__ import annotations

import dataclasses
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import click

from precompiled import parts
from precompiled.cli import checks_daemon, checks_hook, checks_host, checks_store
from precompiled.cli.app import command
from precompiled.cli.output import ALL_SHOWS, Output, all_option
from precompiled.core import config
from precompiled.core.check import Check
from precompiled.core.config import Settings
from precompiled.core.errors import ConfigError
from precompiled.core.words import format_count

_Checks = Callable[[Settings], Iterator[Check]]


def groups(*, complete: bool = True) -> dict[str, _Checks]:
    """The groups of checks, in the order of the output.

    ``complete``: also check packages. This check takes as long as all other checks together.
    """
    problems = config.find_problems()
    found: dict[str, _Checks] = {
        "settings": partial(check_settings, problems=problems),
        "hook": partial(checks_hook.run, is_valid=not problems, with_packages=complete),
        "daemon": checks_daemon.run,
        "store": checks_store.run,
    }
    for name, entry in (("remote", parts.REMOTE_STATE), ("farm", parts.FARM_STATE)):
        if (part := entry.get()) is not None:
            found[name] = part.checks
    return found | {"host": checks_host.run}


def check_settings(settings: Settings, problems: Sequence[ConfigError]) -> Iterator[Check]:
    for error in problems:
        yield Check("settings", "fail", error.message, error.action)
    if not problems:
        yield Check("settings", "ok", "all values are valid")


# Problems come first.
MARKS = {"fail": "FAIL", "warn": "WARN", "info": "info", "ok": "ok"}
COLOURS = {"fail": "red", "warn": "yellow", "info": "cyan", "ok": "green"}


@command("doctor", needs_valid_settings=False, examples=["precompiled doctor", "precompiled doctor --all"])
@all_option("Show all checks, and also check packages (takes longer).")
def doctor_command(out: Output, settings: Settings, show_all: bool) -> int:
    """Check this installation, and say how to fix it.

    Checks the settings, the hook, the daemon, the store, the remote, the farm and the host. Shows problems, and with
    --all or --json every check. The exit status is 1 if a check fails; warnings do not count.
    """
    complete = show_all or out.as_json
    if sys.stderr.isatty():
        click.echo("Checking the hook, the daemon, the store, the remote, the farm and the host ...", err=True)
    checks = run_checks(settings, complete=complete)
    out.result(
        [dataclasses.asdict(check) for check in checks], lambda: _show(checks, show_all), "" if show_all else ALL_SHOWS
    )
    return int(any(check.state == "fail" for check in checks))


def run_checks(settings: Settings, *, complete: bool = True) -> list[Check]:
    """Run all checks, in order. A check that raises counts as failed, and does not stop the other checks."""
    checks: list[Check] = []
    for name, group in groups(complete=complete).items():
        try:
            for check in group(settings):
                checks.append(check)
        except Exception as error:  # noqa: BLE001 - a broken check must not hide the others
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{where.filename}:{where.lineno}"
            checks.append(Check(name, "fail", f"this check failed with {error!r} ({place})", "Report this bug"))
    return checks


def _show(checks: list[Check], show_all: bool) -> None:
    width = max(len(check.check) for check in checks)
    for state, mark in MARKS.items():
        for check in checks:
            if check.state == state and (show_all or state != "ok"):
                said = f"{click.style(f'{mark:<4}', fg=COLOURS[state])}  {check.check:<{width}}  {check.message}"
                click.echo(said)
                if check.action and state != "ok":
                    click.echo(f"      -> {check.action}")
    number = {state: sum(check.state == state for check in checks) for state in MARKS}
    warnings = format_count(number["warn"], "warning", zero="no")
    folded = "" if show_all else " --all shows all checks."
    click.echo(f"{format_count(len(checks), 'check')}, {number['fail'] or 'none'} failed, {warnings}.{folded}")
