"""cache stats: show the counters of the daemon, or of one run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from precompiled.cli import runs
from precompiled.cli.app import command
from precompiled.cli.daemon import ANSWER_TIMEOUT_S, ask_daemon, fields, timeout_option
from precompiled.cli.output import Output, all_option, pairs
from precompiled.cli.status import STATES, last_states
from precompiled.core.config import Settings
from precompiled.core.errors import DaemonError
from precompiled.core.words import describe_saved, format_count, human_seconds
from precompiled.store import saved_counts

# Maps each section to its counters. A counter is a field of wire.StatsReply, mapped to its name in the text.
SECTIONS = {
    "lookups": {"hits": "hits", "from_base": "hits in base stores", "misses": "misses"},
    "compiles": {
        "submitted": "submitted",
        "deduplicated": "joined a running compile",
        "rejected": "rejected",
        "compiled": "compiled",
        "failed": "failed",
        "retried": "started again",
        "compile_s": "compile time",
        "saved_s": "compiles saved",
    },
    "graphs": {
        "swapped": "swapped from eager to compiled",
        "bypassed": "left to torch",
        "fallbacks": "fallbacks",
        "not_served": "errors (require)",
    },
    "functions": {"untraced": "not traced", "traced": "traced", "not_kept": "traced, not stored"},
}


@command("stats", examples=["precompiled cache stats", "precompiled cache stats --run last"])
@click.option("--run", metavar="NAME", help="Count for one run, rank by rank: NAME is a run, a program, or `last`.")
@all_option("Also show counters that are 0.")
@timeout_option(ANSWER_TIMEOUT_S)
def stats_command(out: Output, settings: Settings, run: str | None, show_all: bool, timeout: float) -> int:
    """Count hits, misses and compiles of your programs.

    The counts continue when the daemon restarts. Without a daemon, the command shows the last counts.
    """
    if run is not None:
        out.result(*runs.stats(settings, run))
        return 0
    from precompiled import wire

    try:
        reply = fields(ask_daemon(settings, wire.Stats(), timeout))
    except DaemonError as error:
        if error.code != "no-daemon":
            raise
        reply = fields(wire.StatsReply()) | _saved(settings)
    reply |= last_states(settings)
    out.result(reply, lambda: _show(reply, show_all))
    return 0


def _saved(settings: Settings) -> dict[str, Any]:
    """The user's counts that the last daemon has saved. Empty if no counts exist, or if only root can read them."""
    try:
        return saved_counts.read(settings.runtime_dir).get(os.getuid(), {})
    except (OSError, ValueError):
        return {}


def _show(reply: dict[str, Any], show_all: bool) -> None:
    rows = list(_rows(reply, show_all))
    if not rows:
        click.echo("Nothing is counted yet. --all shows all counters.")
    pairs(rows)


def _rows(reply: dict[str, Any], show_all: bool) -> Iterator[tuple[str, str]]:
    for section, counters in SECTIONS.items():
        shown = [name for name in counters if show_all or reply[name] or (name == "hits" and reply["misses"])]
        rows = [(f"  {counters[name]}", _text(name, reply)) for name in shown]
        if rows:
            yield section, ""
            yield from rows
    for name, part in STATES.items():
        if reply[name]:
            yield name, part.require().line(reply[name])


def _text(name: str, reply: dict[str, Any]) -> str:
    value = reply[name]
    if isinstance(value, dict):
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(value.items()))
        return f"{sum(value.values())}: {reasons}" if value else "0"
    if name == "saved_s":
        return describe_saved(value) if value else "none"
    if name == "compile_s":
        mean = f" ({human_seconds(value / reply['compiled'])} each)" if reply["compiled"] else ""
        return human_seconds(value) + mean
    lookups = reply["hits"] + reply["misses"]
    if name == "hits" and lookups:
        return f"{value} of {format_count(lookups, 'lookup')} ({value / lookups:.0%})"
    return f"{value}"
