"""cancel and retry: a user's word on single jobs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from precompiled.cli.app import command
from precompiled.cli.daemon import ANSWER_TIMEOUT_S, ask_daemon
from precompiled.cli.output import SHOWN_DIGITS, Output
from precompiled.core.config import Settings
from precompiled.core.errors import DaemonError, PrecompiledError
from precompiled.core.words import listed
from precompiled.store.artifacts import Store

MIN_DIGITS = 6  # as `top` shows them in a narrow window


@command("cancel")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
def cancel_command(out: Output, settings: Settings, keys: tuple[str, ...]) -> None:
    """Give up the jobs of the KEYs (beginnings are enough), queued or running. Their graphs stay eager."""
    found = cancel(settings, keys)
    out.result({"cancelled": found}, f"Cancelled {_shown(found)}.")


@command("retry")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
def retry_command(out: Output, settings: Settings, keys: tuple[str, ...]) -> None:
    """Forget why graphs of the KEYs (beginnings are enough) failed: the next process has them compiled again."""
    found = retry(settings, keys)
    out.result({"retried": found}, f"The next process has {_shown(found)} compiled again.")


def cancel(settings: Settings, beginnings: Sequence[str]) -> list[str]:
    """The keys whose jobs were given up. Raises PrecompiledError."""
    from precompiled import wire

    _check(beginnings)
    found: list[str] = ask_daemon(settings, wire.GiveUp(list(beginnings)), ANSWER_TIMEOUT_S).keys
    return _some(found, beginnings, "no job is queued or running")


def retry(settings: Settings, beginnings: Sequence[str]) -> list[str]:
    """The keys of which a failure record or a quarantine was there. Raises PrecompiledError."""
    from precompiled import wire

    _check(beginnings)
    store = Store(settings.cache_dir)
    failed = {failure.key for failure in store.failures() if failure.key.startswith(tuple(beginnings))}
    for key in failed:
        store.forget_failure(key)
    try:
        found = set(ask_daemon(settings, wire.Retry(list(beginnings)), ANSWER_TIMEOUT_S).keys)
    except DaemonError as error:
        if error.code != "no-daemon":  # which would have forgotten its quarantines
            raise
        found = set()
    return _some(sorted(failed | found), beginnings, "nothing has failed")


def _check(beginnings: Sequence[str]) -> None:
    for text in beginnings:
        if len(text) < MIN_DIGITS or set(text) - set("0123456789abcdef"):
            raise click.UsageError(f"{text!r} is no beginning of a key: give {MIN_DIGITS} digits or more")


def _some(found: list[str], beginnings: Sequence[str], none: str) -> list[str]:
    if not found:
        raise PrecompiledError(
            f"{none} of {listed(beginnings, 'or')}", "`precompiled top` shows keys", code="no-such-job"
        )
    return found


def act(settings: Settings, action: str, beginning: str) -> str:
    """"cancel" or "retry" for a screen: what has come of it, in a line. Raises nothing of ours."""
    try:
        found = cancel(settings, [beginning]) if action == "cancel" else retry(settings, [beginning])
    except PrecompiledError as error:
        return error.message
    except click.UsageError as error:
        return error.message
    return f"{'cancelled' if action == 'cancel' else 'to be compiled again'}: {_shown(found)}"


def _shown(keys: Sequence[str]) -> str:
    return listed([key[:SHOWN_DIGITS] for key in keys])
