"""remote push, pull, sync, ls, gc: copy, list and remove objects of the remote directly, without its helper."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import click

from precompiled.cli.app import command
from precompiled.cli.key_prefixes import KEY, match_all, resolve
from precompiled.cli.output import JSON_HAS, SHOWN_DIGITS, Output, table
from precompiled.core.config import Settings
from precompiled.core.words import format_count, human_bytes
from precompiled.remote import ahead, expiry, lists, transfer
from precompiled.remote.state import open_remote
from precompiled.store import run_records
from precompiled.store.artifacts import Store

DAY_S = 86_400.0


def _choice(function: Callable[..., object]) -> Callable[..., Any]:
    """Add the options and the argument of push, pull and sync."""
    for option in (
        click.option("--days", type=float, metavar="N", help="Copy only objects of the last N days."),
        click.option("--program", metavar="FILE", help="Copy only objects that the program with this main file used."),
        click.argument("keys", nargs=-1, metavar="[KEY]...", type=KEY),
    ):
        function = option(function)
    return function


@command("push", overrides=True, examples=["precompiled remote push", "precompiled remote push --program train.py"])
@_choice
def push_command(
    out: Output, settings: Settings, keys: tuple[str, ...], program: str | None, days: float | None
) -> int:
    """Copy the store, or the graphs that you name, to the remote.

    The first four digits of a KEY are enough.
    """
    there = open_remote(settings)
    return _done(out, there, {"put": _push(there, settings, keys, program, days)})


@command("pull", overrides=True, examples=["precompiled remote pull", "precompiled remote pull --days 7"])
@_choice
def pull_command(
    out: Output, settings: Settings, keys: tuple[str, ...], program: str | None, days: float | None
) -> int:
    """Copy the remote, or the graphs that you name, to the store.

    The first four digits of a KEY are enough. The command refuses objects that are damaged or whose key this host does
    not trust. The exit status is then 1, but all other objects are copied.
    """
    there = open_remote(settings)
    return _done(out, there, {"fetched": _pull(there, keys, program, days)})


@command("sync", overrides=True, examples=["precompiled remote sync"])
@_choice
def sync_command(
    out: Output, settings: Settings, keys: tuple[str, ...], program: str | None, days: float | None
) -> int:
    """Pull, then push: store and remote then have the same objects."""
    there = open_remote(settings)
    fetched = _pull(there, keys, program, days)
    return _done(out, there, {"fetched": fetched, "put": _push(there, settings, keys, program, days)})


def _since(days: float | None) -> float:
    return 0.0 if days is None else time.time() - days * DAY_S


def _pull(there: transfer.Transfer, keys: Sequence[str], program: str | None, days: float | None) -> int:
    if program is None:
        if not keys:
            return there.pull((), _since(days))
        known = {item.group for item in there.everything() if item.kind == transfer.ARTIFACT}
        whole = match_all(keys, known, there.bucket.url, "`precompiled remote ls` lists all objects")
        return there.pull(whole, _since(days))
    _no_keys(keys)
    _lists, objects = lists.read_lists(there, ahead.identity(_existing(program)))
    if days is not None:  # lists have no times
        times = {item.path: item.written or 0.0 for item in there.everything()}
        objects = [item for item in objects if times.get(item.path, 0.0) >= _since(days)]
    return there.bring(objects)


def _push(
    there: transfer.Transfer, settings: Settings, keys: Sequence[str], program: str | None, days: float | None
) -> int:
    if program is None:
        return there.push(resolve(Store(settings.cache_dir), keys, own=True), _since(days))
    _no_keys(keys)
    name = os.path.basename(_existing(program))
    used = {
        str(graph["key"])
        for run in run_records.runs(settings.cache_dir)
        for process in run.processes
        if process.program == name
        for graph in process.graphs.values()
        if graph.get("key")
    }
    if not used:
        return 0
    found = there.push(sorted(used), _since(days), packages=True)
    entries = [(entry.header.function, entry.name) for entry in there.entries(used)]
    return found + lists.note(there, ahead.identity(program), sorted(used), sorted(used), entries)


def _no_keys(keys: Sequence[str]) -> None:
    if keys:
        raise click.UsageError("Give either KEYs or --program")


def _existing(program: str) -> str:
    if not os.path.isfile(program):
        raise click.UsageError(f"--program: the file {program!r} does not exist")
    return program


def _done(out: Output, there: transfer.Transfer, done: dict[str, int]) -> int:
    counts = there.counts
    refused = sum(counts.refused.values())
    sizes = {"put": counts.bytes_put, "fetched": counts.bytes_fetched}
    said = ", ".join(
        f"{format_count(count, 'object')} {verb}, {human_bytes(sizes[verb])}" for verb, count in done.items()
    )
    if refused:
        reasons = ", ".join(f"{code} {number}" for code, number in sorted(counts.refused.items()))
        out.note(f"precompiled: {format_count(refused, 'object')} refused ({reasons}); the last: {counts.last}.")
    document = {
        "remote": there.bucket.url,
        **done,
        "bytes": sum(sizes[verb] for verb in done),
        "refused": dict(counts.refused),
    }
    out.result(document, f"{said} ({there.bucket.url}).")
    return int(refused > 0)


@command("ls", overrides=True, examples=["precompiled remote ls"])
def ls_command(out: Output, settings: Settings) -> None:
    """List the objects in the remote.

    Reads the names of the objects, not their contents.
    """
    there = open_remote(settings)
    objects = there.everything()
    rows: list[dict[str, Any]] = [
        {
            "kind": item.kind,
            "group": item.group,
            "label": item.label,
            "by": item.by,
            "bytes": item.size,
            "believed": there.trust.believes(item.by),
        }
        for item in objects
    ]

    def show() -> None:
        table(
            ("KIND", "KEY OR FUNCTION", "SIZE", "SIGNED BY", ""),
            [
                (
                    row["kind"],
                    row["group"][:SHOWN_DIGITS],
                    human_bytes(row["bytes"]),
                    row["by"],
                    "" if row["believed"] else "not trusted",
                )
                for row in rows
            ],
            right=("SIZE",),
        )
        click.echo(f"{format_count(len(rows), 'object')} in {there.bucket.url}")

    out.result({"remote": there.bucket.url, "objects": rows}, show, JSON_HAS)


@command("gc", overrides=True, examples=["precompiled remote gc --days 30 --dry-run"])
@click.option("--days", type=float, metavar="N", help="Remove objects that are more than N days old.")
@click.option(
    "--max-bytes", type=click.IntRange(min=0), metavar="N", help="Remove the oldest objects until N bytes are left."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
def gc_command(out: Output, settings: Settings, days: float | None, max_bytes: int | None, dry_run: bool) -> None:
    """Remove old objects and expired leases from the remote.

    The age of an object counts from its upload.
    """
    if days is None and max_bytes is None:
        raise click.UsageError("Give --days, --max-bytes, or both")
    bucket = open_remote(settings).bucket
    items = expiry.ours(bucket)
    now = time.time() if dry_run or not items else expiry.time_there(bucket)
    gone = expiry.select_expired(items, now, None if days is None else days * DAY_S, max_bytes)
    if not dry_run:
        expiry.remove(bucket, gone)
    size, left = sum(item.size for item in gone), sum(item.size for item in items) - sum(item.size for item in gone)
    verb = "would be removed" if dry_run else "removed"
    text = f"{format_count(len(gone), 'object')} {verb}, {human_bytes(size)}; {human_bytes(left)} left in {bucket.url}."
    out.result(
        {
            "remote": bucket.url,
            "removed": [item.path for item in gone],
            "bytes": size,
            "bytes_left": left,
            "dry_run": dry_run,
        },
        text,
    )
