"""push, pull, remote ls: the remote behind the store, without its helper."""

from __future__ import annotations

from typing import Any

import click

from precompiled.cli.app import command
from precompiled.cli.output import SHOWN_DIGITS, Output, table
from precompiled.core.config import Settings
from precompiled.core.errors import PrecompiledError
from precompiled.core.words import counted, human_bytes
from precompiled.remote import transfer, trusting
from precompiled.remote.errors import RemoteError

NOT_SET = "no remote is set"


@command("push", overrides=True)
@click.argument("keys", nargs=-1, metavar="[KEY]...")
def push_command(out: Output, settings: Settings, keys: tuple[str, ...]) -> int:
    """Put what is in the store into the remote: everything, or the artifacts of the KEYs (beginnings are enough)."""
    there = opened(settings)
    return _done(out, there, there.push([key.lower() for key in keys]), "put")


@command("pull", overrides=True)
@click.argument("keys", nargs=-1, metavar="[KEY]...")
def pull_command(out: Output, settings: Settings, keys: tuple[str, ...]) -> int:
    """Fetch what is in the remote into the store: everything, packages too, or the artifacts of the KEYs.

    Exit status 1 when an object was refused; what is believed and whole was fetched all the same.
    """
    there = opened(settings)
    return _done(out, there, there.pull([key.lower() for key in keys]), "fetched")


def _done(out: Output, there: transfer.Transfer, count: int, verb: str) -> int:
    counts = there.counts
    refused = sum(counts.refused.values())
    size = counts.bytes_put if verb == "put" else counts.bytes_fetched
    text = f"{counted(count, 'object')} {verb}, {human_bytes(size)} ({there.bucket.url})."
    if refused:
        reasons = ", ".join(f"{code} {number}" for code, number in sorted(counts.refused.items()))
        out.note(f"precompiled: {counted(refused, 'object')} refused ({reasons}); the last: {counts.last}.")
    out.result({"remote": there.bucket.url, verb: count, "bytes": size, "refused": dict(counts.refused)}, text)
    return int(refused > 0)


@click.group("remote")
def remote_command() -> None:
    """Look at the remote behind the store. Each command takes --json."""


@command("ls", overrides=True)
def ls_command(out: Output, settings: Settings) -> None:
    """List the objects in the remote, by their names: nothing of them is read."""
    there = opened(settings)
    objects = there.everything()
    rows: list[dict[str, Any]] = [
        {"kind": item.kind, "group": item.group, "label": item.label, "by": item.by, "bytes": item.size,
         "believed": there.trust.believes(item.by)}
        for item in objects
    ]  # fmt: skip

    def show() -> None:
        table(
            ("KIND", "KEY OR FUNCTION", "SIZE", "SIGNED BY", ""),
            [
                (row["kind"], row["group"][:SHOWN_DIGITS], human_bytes(row["bytes"]), row["by"],
                 "" if row["believed"] else "not believed")
                for row in rows
            ],
            right=("SIZE",),
        )  # fmt: skip
        click.echo(f"{counted(len(rows), 'object')} in {there.bucket.url}")

    out.result({"remote": there.bucket.url, "objects": rows}, show)


remote_command.add_command(ls_command)


def opened(settings: Settings) -> transfer.Transfer:
    """The store and its remote. Raises RemoteError."""
    if not settings.remote:
        raise RemoteError(
            NOT_SET, "Set `remote` (PRECOMPILED_REMOTE), for instance to s3://bucket/prefix", code="remote-unusable"
        )
    return transfer.opened(
        settings.cache_dir, settings.remote, settings.remote_timeout_s, trusting.trust(settings.remote_unsigned)
    )


# ---------------------------------------------------------------- for status, stats and doctor


def told(settings: Settings) -> dict[str, Any] | None:
    """What the remote's helper last said of itself; None where no remote is set."""
    from precompiled.remote import link

    if not settings.remote:
        return None
    state = link.state(settings.cache_dir)
    if state is None or state.get("remote") != settings.remote:
        return {"remote": settings.remote, "state": "unused", "code": "", "reason": "", "running": False}
    return {**state, "running": link.greeting(settings.cache_dir) is not None}


def line(state: dict[str, Any]) -> str:
    """The same for people."""
    text = f"{state['remote']}: {state['state']}"
    if state.get("reason"):
        text += f" ({state['code']}: {state['reason']})"
    if "fetched" in state:
        text += f"; {state['fetched']} fetched, {state['put']} put, {state['absent']} not there"
        refused = state.get("refused") or {}
        if refused:
            text += f", refused: {', '.join(f'{code} {count}' for code, count in sorted(refused.items()))}"
            text += f" (the last: {state['last']})"
    return text


def problem(settings: Settings) -> PrecompiledError | None:
    """Why the remote cannot be used now, by asking it; None where it answers."""
    try:
        opened(settings).bucket.listed("artifacts")
    except RemoteError as error:
        return error
    return None
