"""explain: why a graph was a miss, by what differs from the nearest graph that was there; and what a reason means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any

import click

from precompiled.cli import functions, runs
from precompiled.cli.app import command
from precompiled.cli.nearest import NOT_SENT, Explained, Kepts, named_sizes
from precompiled.cli.output import SHOWN_DIGITS, Output, pairs
from precompiled.cli.store import open_store, resolve
from precompiled.core.config import Settings
from precompiled.core.errors import StoreError
from precompiled.core.reasons import REASONS, Reason, plain
from precompiled.graph import key, listing
from precompiled.store.artifacts import Store

_KEY = re.compile("[0-9a-fA-F]*")
MAX_SHOWN = 20
TITLES = {
    "graph": "the graph",
    "inputs": "the inputs",
    "modes": "the modes",
    "configs": "the configuration (torch._inductor.config, torch._functorch.config, mode= and options=)",
    "environment": "the environment",
}


def _codes(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """For a shell that completes: keys and functions are in a store, which may be large."""
    return [code for code in REASONS if code.startswith(begun)]


@command("explain")
@click.argument("prefix", required=False, metavar="[KEY|FUNCTION|CODE]", shell_complete=_codes)
@click.option("--last", is_flag=True, help="The graph that was published last.")
@click.option("--run", metavar="NAME", help="What became of all graphs of a run, of each rank; `last` is the last one.")
def explain_command(out: Output, settings: Settings, prefix: str | None, last: bool, run: str | None) -> None:
    """Say why a graph was not found in the store: what differs from the nearest graph that was there before it.

    A unique beginning of KEY is enough. Of a function's name (`model.Net.forward`): why it was traced although it has a
    package, with the guard and the line in its source. Of a reason's CODE (`no-daemon`): what it means, and what can
    be done.
    """
    if [prefix is not None, last, run is not None].count(True) != 1:
        raise click.UsageError("give either a KEY (or a function, or a reason's code), or --last, or --run NAME")
    if run is not None:
        out.result(*runs.explain(settings, run))
        return
    if prefix in REASONS:  # no code is the beginning of a key: none is a hexadecimal number
        reason = REASONS[prefix]
        out.result(_reason_document(reason), lambda: _show_reason(reason))
        return
    store = open_store(settings)
    kepts = Kepts(store)
    awaited = runs.awaited(settings) if prefix is None else []
    if prefix is None:
        if not kepts.all and awaited:
            out.result({"awaited": awaited}, lambda: runs.show_awaited(awaited))
            return
        if not kepts.all:
            raise StoreError(
                f"no graph was compiled yet for {store.root}", "Run a program under `precompiled run` first",
                code="no-such-key",
            )  # fmt: skip
        whole = kepts.all[-1].key
    elif _KEY.fullmatch(prefix) is None:
        about = _function(store, prefix)
        out.result(about, lambda: functions.explain(about))
        return
    else:
        whole = _key(settings, store, kepts, prefix)
    found = kepts.explain(whole)
    nearest = found.nearest
    document = {
        **found.mine[-1].document(),
        "causes": [{**asdict(cause), "advice": cause.advice} for cause in found.causes],
        "calls": [asdict(call) for call in listing.calls(found.program)],
        "nearest": nearest.kept.document() if nearest else None,
        "equal": found.equal,
        "changes": [asdict(change) for change in nearest.changes] if nearest else [],
        "variants": found.variants,
        "awaited": awaited,
    }

    def show() -> None:
        if awaited:
            runs.show_awaited(awaited)
            click.echo("\nThe last one that was compiled:\n")
        _show(found)

    out.result(document, show)


def _function(store: Store, name: str) -> dict[str, Any]:
    """What is to be said of a function with a package. Raises StoreError where the name stands for nothing."""
    try:
        return functions.explain_document(store, name)
    except StoreError as error:
        if functions.is_function(name) or error.code != "no-such-function":
            raise
        alike = get_close_matches(name, REASONS, n=1)
        raise StoreError(
            f"{name!r} is no reason's code, no beginning of a key, and no function that has a package in {store.root}",
            f"Did you mean {alike[0]}?" if alike else error.action,
            code="no-such-function",
        ) from None


def _key(settings: Settings, store: Store, kepts: Kepts, prefix: str) -> str:
    """The whole key. Of a graph that is not in the store, a run may know why."""
    not_sent = [item.key for item in kepts.all if item.state == NOT_SENT and item.key.startswith(prefix.lower())]
    if len(not_sent) == 1 and not any(known.startswith(prefix.lower()) for known in store.names()):
        return not_sent[0]
    try:
        return resolve(store, [prefix])[0]
    except StoreError as error:
        known = runs.graph_of(settings, prefix) if error.code == "no-such-key" and prefix else None
        if known is None:
            raise
        raise StoreError(f"{prefix} is not in {store.root}: {known}", error.action, code="no-such-key") from None


# ---------------------------------------------------------------- a reason's code


def _reason_document(reason: Reason) -> dict[str, Any]:
    return {
        "code": reason.code,
        "kind": reason.kind.name.lower().replace("_", "-"),
        "meaning": reason.meaning,
        "outcome": reason.outcome.value if reason.outcome else None,
        "follows": reason.follows,
        "advice": reason.advice,
    }


def _show_reason(reason: Reason) -> None:
    click.echo(f"{reason.code}: {plain(reason.meaning)}\n\n{plain(reason.kind.value)}")
    said = [("what follows", plain(reason.follows)), ("what you can do", reason.plain_advice)]
    pairs([(f"  {name}", text) for name, text in said if text])


# ---------------------------------------------------------------- shown


def _show(found: Explained) -> None:
    mine, nearest = found.mine, found.nearest
    click.echo(str(mine[-1]))
    if mine[-1].state == "failed":
        click.echo(f"Why it failed: `precompiled show {mine[-1].key[:SHOWN_DIGITS]}` has the message.")
    for number, variant in enumerate(found.variants):
        if number:
            _show_variant(found, variant, found.variants[:number])
    click.echo()
    if len(mine) > 1:
        click.echo("Why the key itself was new:")
    for cause in found.causes:
        runs.show_cause(cause, "")
    if nearest is None:
        click.echo("The store had nothing alike when it was compiled.")
        return
    click.echo(f"\nnearest: {nearest.kept}")
    if found.equal:
        click.echo(f"the same: {', '.join(found.equal)}")
    for section in key.SECTIONS:
        changes = [change for change in nearest.changes if change.section == section]
        if changes:
            click.echo(f"\n{TITLES[section]}")
        for change in changes[:MAX_SHOWN]:
            click.echo(f"  {change}")
            if change.source:
                click.echo(f"    {change.source}")
        if len(changes) > MAX_SHOWN:
            click.echo(f"  and {len(changes) - MAX_SHOWN} more: --json has them all")


def _show_variant(found: Explained, variant: dict[str, Any], earlier: Sequence[dict[str, Any]]) -> None:
    sizes = named_sizes(found.program, variant["sizes"])
    click.echo(f"\nartifact {variant['slot']}: no variant's guards accepted the sizes {sizes or '(not kept)'}")
    for other in earlier:
        click.echo(f"  artifact {other['slot']} holds where {other['guards'] or 'nothing is asked'}")
    names = "; ".join(f"{symbol} is {name}" for symbol, name in listing.symbols(found.program).items())
    if names:
        click.echo(f"  {names}")
