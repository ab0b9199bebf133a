"""daemon cancel and daemon retry: cancel or retry the compile of single graphs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from precompiled.cli import key_prefixes
from precompiled.cli.app import command
from precompiled.cli.daemon import ANSWER_TIMEOUT_S, ask_daemon
from precompiled.cli.output import SHOWN_DIGITS, Output
from precompiled.cli.runs import awaited_graphs
from precompiled.core.config import Settings
from precompiled.core.errors import DaemonError, PrecompiledError
from precompiled.core.words import format_list
from precompiled.store.artifacts import Store


@command("cancel", examples=["precompiled daemon cancel 3f9c0d1e"])
@click.argument("keys", nargs=-1, required=True, metavar="KEY...", type=key_prefixes.KEY)
def cancel_command(out: Output, settings: Settings, keys: tuple[str, ...]) -> None:
    """Cancel the queued or running compile of a graph.

    The graph stays eager in running programs. `precompiled status --watch` shows the KEYs; the first four digits are
    enough.
    """
    found = cancel(settings, keys)
    out.result({"cancelled": found}, f"Cancelled {_shown(found)}.")


@command("retry", examples=["precompiled daemon retry 3f9c0d1e"])
@click.argument("keys", nargs=-1, required=True, metavar="KEY...", type=key_prefixes.KEY)
def retry_command(out: Output, settings: Settings, keys: tuple[str, ...]) -> None:
    """Retry a graph whose compile failed.

    The daemon compiles the graph for the next program that needs it. Running programs do not change.
    `precompiled cache ls` shows the KEYs of failed graphs; the first four digits are enough.
    """
    found = retry(settings, keys)
    out.result({"retried": found}, f"The daemon compiles {_shown(found)} for the next program that needs it.")


def cancel(settings: Settings, prefixes: Sequence[str]) -> list[str]:
    """Cancel jobs; returns their keys. Raises PrecompiledError if no job matches."""
    from precompiled import wire

    status: wire.StatusReply = ask_daemon(settings, wire.Status(), ANSWER_TIMEOUT_S)
    keys = _whole(
        prefixes, {graph["key"] for graph in awaited_graphs(settings)} | {worker.job for worker in status.workers}
    )
    found: list[str] = ask_daemon(settings, wire.GiveUp(keys), ANSWER_TIMEOUT_S).keys
    return _some(found, prefixes, "no job is queued or running")


def retry(settings: Settings, prefixes: Sequence[str]) -> list[str]:
    """Remove failure records and quarantines; returns the keys. Raises PrecompiledError if no key matches."""
    from precompiled import wire

    store = Store(settings.cache_dir)
    failures = {failure.key for failure in store.failures()}
    keys = _whole(prefixes, failures)
    failed = failures.intersection(keys)
    for key in failed:
        store.forget_failure(key)
    try:
        found = set(ask_daemon(settings, wire.Retry(keys), ANSWER_TIMEOUT_S).keys)
    except DaemonError as error:
        if error.code != "no-daemon":  # without a daemon there are no quarantines
            raise
        found = set()
    return _some(sorted(failed | found), prefixes, "no compile has failed")


def _whole(prefixes: Sequence[str], known: set[str]) -> list[str]:
    """Complete these prefixes to whole keys. An unknown prefix stays as it is, because the daemon may know its key."""
    return [key_prefixes.match(prefix, known) or prefix for prefix in prefixes]


def _some(found: list[str], prefixes: Sequence[str], none: str) -> list[str]:
    if not found:
        raise PrecompiledError(
            f"{none} for a key that begins with {format_list([repr(text) for text in prefixes], 'or')}",
            "`precompiled status --watch` shows keys",
            code="no-such-job",
        )
    return found


def act(settings: Settings, action: str, prefix: str) -> str:
    """Do "cancel" or "retry" for the live view. Returns the outcome or error as one line."""
    try:
        keys = [key_prefixes.check(prefix)]
        found = cancel(settings, keys) if action == "cancel" else retry(settings, keys)
    except PrecompiledError as error:
        return error.message
    except click.UsageError as error:
        return error.message
    return f"{'cancelled' if action == 'cancel' else 'to be compiled again'}: {_shown(found)}"


def _shown(keys: Sequence[str]) -> str:
    return format_list([key[:SHOWN_DIGITS] for key in keys])
