"""explain: why graphs were compiled or functions traced, or what a code means.

- without an argument, ``--run``: the graphs of a run (cli/runs.py)
- ``KEY``, ``--newest``: one graph, compared with the nearest graph in the store (nearest.py)
- ``FUNCTION``: the traces of one function (functions.py)
- ``FILE``, or the name of a program: the newest run of the program
- ``WORD``: a code of core/reasons.tsv, or a state of state_words.py
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import click

from precompiled.cli import functions, misses, outcomes, runs
from precompiled.cli.app import command
from precompiled.cli.key_prefixes import check, complete_key, resolve
from precompiled.cli.nearest import NOT_SENT, PENDING, Explained, Kepts, deciding_failure, is_published, named_sizes
from precompiled.cli.output import ALL_SHOWS, SHOWN_DIGITS, Output, all_option, pairs, shortened
from precompiled.cli.pending_graphs import PendingCauses
from precompiled.cli.state_words import STATE_WORDS, StateWord, find_state
from precompiled.cli.store import open_store
from precompiled.core.config import Settings
from precompiled.core.errors import StoreError
from precompiled.core.names import shorten_paths
from precompiled.core.reasons import Reason, plain, read_reasons
from precompiled.core.words import closest
from precompiled.graph import key, listing
from precompiled.store.artifacts import Store
from precompiled.store.run_records import RUN_FIRST

_KEY = re.compile("[0-9a-fA-F]*")
MAX_SHOWN = 20
TITLES = {
    "graph": "the graph",
    "inputs": "the inputs",
    "modes": "the modes",
    "configs": "the configuration (torch._inductor.config, torch._functorch.config, mode= and options=)",
    "environment": "the environment",
}


def _complete(context: click.Context, _parameter: click.Parameter, begun: str) -> list[str]:
    """Shell completion of words, keys and programs. Does not complete functions, because finding their names would
    require reading all packages.
    """
    return [word for word in (*read_reasons(), *STATE_WORDS) if word.startswith(begun)] + (
        [*complete_key(context, begun), *runs.complete_program(context, begun)] if begun else []
    )


@command("explain", examples=["precompiled explain", "precompiled explain model.Net.forward"])
@click.argument("prefix", required=False, metavar="[KEY|FUNCTION|FILE|WORD]", shell_complete=_complete)
@click.option("--newest", is_flag=True, help="Explain the newest graph of any program.")
@click.option("--run", metavar="NAME", help="Explain a run, rank by rank: NAME is a run, a program, or `last`.")
@all_option("Print all lines on a terminal, too.")
def explain_command(
    out: Output, settings: Settings, prefix: str | None, newest: bool, run: str | None, show_all: bool
) -> None:
    """Show why graphs of your last run were compiled or traced.

    \b
    KEY       why the store lacked this graph: its differences from the nearest
              graph in the store (four digits of the KEY are enough)
    FUNCTION  why a function such as `model.Net.forward` was traced again, with
              the guard that failed and its source line
    FILE      the newest run of a program such as `train.py`
    WORD      what a reason such as `no-daemon` or a state such as `bypassed`
              means, and what to do
    """
    given = [prefix is not None, newest, run is not None].count(True)
    if given > 1:
        raise click.UsageError("Give only one of KEY, FUNCTION, FILE, WORD, --newest and --run")
    run = run if given else "last"
    rest = "" if show_all else ALL_SHOWS
    # Codes and states are not hexadecimal, so none is a prefix of a key.
    if prefix is not None and _explain_word(out, prefix):
        return
    if prefix is not None and runs.names_run(settings, prefix):
        run = prefix
    if run is not None:
        out.result(*runs.explain(settings, run), rest)
        return
    store = open_store(settings)
    kepts = Kepts(store)
    awaited = runs.awaited_graphs(settings) if prefix is None else []
    if prefix is None:
        if not kepts.all and awaited:
            out.result({"awaited": awaited}, lambda: runs.show_awaited(awaited), rest)
            return
        if not kepts.all:
            raise StoreError(
                f"no graph has been compiled yet for the store {store.root}",
                RUN_FIRST,
                code="no-such-key",
            )
        whole = kepts.all[-1].key
    elif _KEY.fullmatch(prefix) is None or functions.means_function(store, prefix, (item.key for item in kepts.all)):
        about = _function(store, prefix)
        out.result(about, lambda: functions.explain(about), rest)
        return
    else:
        whole = _key(settings, store, kepts, check(prefix))
    found = kepts.explain(whole)
    if found.mine[-1].bad_code:  # a comparison would explain the first compile, which succeeded
        found = replace(found, nearest=None, causes=[])
    found = replace(found, causes=misses.causes_with_edits(settings, found))
    nearest, failure = found.nearest, deciding_failure(found.mine)
    is_coming = found.mine[-1].state == PENDING and PendingCauses(settings).is_coming(whole, is_alive=False)
    is_served = failure is None and (is_published(found.mine) or is_coming)
    document = {
        **found.mine[-1].document(),
        "causes": [{**asdict(cause), "advice": cause.advise(is_served=is_served)} for cause in found.causes],
        "later": outcomes.describe_later(failure) if failure is not None else "",
        "calls": [asdict(call) for call in listing.calls(found.program)],
        "nearest": nearest.kept.document() if nearest else None,
        "equal": found.equal,
        "changes": [asdict(change) for change in nearest.changes] if nearest else [],
        "variants": found.variants,
        "awaited": awaited,
    }

    def show() -> None:
        others = [graph for graph in awaited if graph["key"] != whole]
        if others:
            runs.show_awaited(others)
            click.echo("\nThe newest graph:\n")
        _show(found, is_served=is_served)

    out.result(document, show, rest)


def _function(store: Store, name: str) -> dict[str, object]:
    """Explain why a function with a package was traced. Raises StoreError for an unknown name."""
    try:
        return functions.explain_document(store, name)
    except StoreError as error:
        if functions.is_function(name) or error.code != "no-such-function":
            raise
        alike = closest(name, [*read_reasons(), *STATE_WORDS])
        raise StoreError(
            f"{name!r} is neither a key, a reason's code, a state, a program with a run, nor a function with a package "
            f"in {store.root}",
            f"Did you mean {alike!r}?" if alike else error.action,
            code="no-such-function",
        ) from None


def _key(settings: Settings, store: Store, kepts: Kepts, prefix: str) -> str:
    """Return the key that begins with ``prefix``. Raises StoreError, with the recorded reason if a run has it."""
    of_runs = [item.key for item in kepts.all if item.is_only_in_run and item.key.startswith(prefix)]
    if len(of_runs) == 1 and not any(known.startswith(prefix) for known in store.names()):
        return of_runs[0]
    try:
        return resolve(store, [prefix])[0]
    except StoreError as error:
        known = runs.graph_of(settings, prefix) if error.code == "no-such-key" else None
        if known is None:
            raise
        message = f"the store {store.root} does not have {prefix}: {known}"
        raise StoreError(message, error.action, code="no-such-key") from None


# ---------------------------------------------------------------- a word


def _explain_word(out: Output, text: str) -> bool:
    """Explain a reason's code or a state. Returns false if the text is neither."""
    reason, state = read_reasons().get(text), find_state(text)
    if reason is not None:
        out.result(_reason_document(reason), lambda: _show_reason(reason))
        if state is not None and not out.as_json:  # such as "busy", for a queue and for a worker
            click.echo(f"\nAs a state: {state.meaning}.")
        return True
    if state is not None:
        out.result(state._asdict(), lambda: _show_state(state))
    return state is not None


def _show_state(state: StateWord) -> None:
    click.echo(f"{state.state}: {state.meaning}.")
    if state.advice:
        click.echo()
        pairs([("  what you can do", state.advice)])


def _reason_document(reason: Reason) -> dict[str, object]:
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


def _show(found: Explained, *, is_served: bool) -> None:
    mine, nearest, failure = found.mine, found.nearest, deciding_failure(found.mine)
    short = mine[-1].key[:SHOWN_DIGITS]
    later = f"{outcomes.describe_later(failure)}. " if failure is not None else ""
    click.echo(str(mine[-1]))
    if mine[-1].bad_code:
        click.echo(
            f"{later}`precompiled cache show {short}` shows the record. `precompiled cache clear {short}` removes it."
        )
        return
    if mine[-1].state == "failed":
        click.echo(f"{later}`precompiled cache show {short}` shows why it failed.")
    if mine[-1].state == NOT_SENT:
        click.echo("A run with a daemon, in a mode other than `lookup`, compiles it.")
    for number, variant in enumerate(found.variants):
        if number:
            _show_variant(found, variant, found.variants[:number])
    if found.causes:
        click.echo(f"\n{outcomes.WHY_COMPILED}:")
    for cause in found.causes:
        runs.show_cause(cause, "  ", is_served=is_served)
    if nearest is None or any(cause.kind == "new" for cause in found.causes):
        return  # a comparison with an unrelated graph would not help
    click.echo(f"\nnearest: {nearest.kept}")
    if found.equal:
        click.echo(f"the same: {', '.join(found.equal)}")
    for section in key.SECTIONS:
        changes = [change for change in nearest.changes if change.section == section]
        more = listing.different_parameters(nearest.program, found.program) if section == "inputs" else ""
        if changes:
            click.echo(f"\n{TITLES[section]}")
        if more:  # the positions of the other parameters shift
            click.echo(f"  {more}")
            changes = [change for change in changes if not change.parameter]
        for change in shortened(changes, MAX_SHOWN, indent="  "):
            click.echo(f"  {change}")
            if change.source:
                click.echo(f"    {shorten_paths(change.source)}")


def _show_variant(found: Explained, variant: dict[str, Any], earlier: Sequence[Mapping[str, object]]) -> None:
    sizes = named_sizes(found.program, variant["sizes"])
    click.echo(f"\nartifact {variant['slot']}: no earlier artifact accepts the sizes {sizes or '(not kept)'}")
    for other in earlier:
        click.echo(f"  artifact {other['slot']} needs {other['guards'] or 'no particular sizes'}")
    names = "; ".join(f"{symbol} is {name}" for symbol, name in listing.symbols(found.program).items())
    if names:
        click.echo(f"  {names}")
