"""Shows packages for `cache ls`, `cache show` and `explain`.

Reads the entries of functions without running their code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from difflib import SequenceMatcher
from typing import Any

import click

from precompiled.cli import outcomes, program_changes
from precompiled.cli.key_prefixes import MIN_DIGITS
from precompiled.cli.output import ALL_SHOWS, SHOWN_DIGITS, human_age, pairs, say_left_out, shortened, table
from precompiled.core.errors import StoreError
from precompiled.core.names import in_words, shorten_paths
from precompiled.core.words import MIN_SIMILARITY, format_count, human_bytes
from precompiled.packages.describe import difference
from precompiled.packages.nearest_entry import compare
from precompiled.store.artifacts import Store
from precompiled.store.package_format import WRAPPER, About, are_of_other_files, files_of
from precompiled.store.packages import Entry
from precompiled.store.run_records import runs

_DOTTED = re.compile(r"[^\W\d]\w*(\.(\w+|<\w+>))+")
MAX_SHOWN, MAX_GUARDS = 10, 20
MAX_SUGGESTED = 3


def is_function(text: str) -> bool:
    """Whether an argument is a function's name (``model.Net.forward``) and not the prefix of a key."""
    return _DOTTED.fullmatch(text) is not None


def means_function(store: Store, text: str, keys: Iterable[str]) -> bool:
    """Whether an argument is a function's name, dotted or not. A name such as ``f`` or ``decode`` may look like a key.

    ``keys``: the known keys. A key that begins with the argument comes first.
    """
    if is_function(text):
        return True
    if len(text) >= MIN_DIGITS and any(key.startswith(text.lower()) for key in keys):
        return False
    return any(function_of(entry).endswith(f".{text}") for entry in store.packages.entries())


# ---------------------------------------------------------------- ls


def rows(store: Store) -> list[dict[str, object]]:
    """One row for each function that has entries, sorted by name."""
    found: dict[str, dict[str, Any]] = {}
    for entry in store.packages.entries():
        name = function_of(entry)
        row = found.setdefault(
            name, {"function": name, "entries": 0, "bytes": 0, "used": 0.0, "skipped": 0, "stores": []}
        )
        if str(entry.root) not in row["stores"]:
            row["stores"].append(str(entry.root))
        row["entries"] += 1
        row["skipped"] += entry.header.kind == "skipped"
        row["bytes"] += len(entry.about) + len(entry.body)
        row["used"] = max(row["used"], _used(entry))
    return [found[name] for name in sorted(found)]


def refusals(store: Store) -> list[dict[str, str]]:
    """``function`` and ``reason`` of each function whose package an audit has disabled."""
    return sorted(store.packages.refusals(), key=lambda refusal: refusal["function"])


def show_rows(found: list[dict[str, Any]], refused: list[dict[str, str]], most: int | None = None) -> None:
    """Print the table of functions, or only the ``most`` functions that were used last. Functions that run uncompiled
    are counted, but not listed.
    """
    compiled = [row for row in found if row["entries"] > row["skipped"]]
    shown = compiled if most is None else sorted(compiled, key=lambda row: -row["used"])[:most]
    if compiled:
        click.echo()
        table(
            ("FUNCTION", "ENTRIES", "SIZE", "USED"),
            [
                (row["function"], str(row["entries"]), human_bytes(row["bytes"]), human_age(row["used"]))
                for row in shown
            ],
            right=("ENTRIES", "SIZE", "USED"),
        )
        say_left_out(compiled, most, f"more: {ALL_SHOWS}")
    if found:
        left = len(found) - len(compiled)
        also = f", {format_count(left, 'that runs uncompiled', 'that run uncompiled')}" if left else ""
        click.echo(f"{format_count(len(compiled), 'function', zero='no')} with packages{also}")
    for refusal in refused:
        click.echo(f"not used: {refusal['reason']}")


# ---------------------------------------------------------------- show


def show_document(store: Store, name: str) -> dict[str, object]:
    """All entries of a function, the most recently used first. Raises StoreError."""
    entries = _entries(store, name)
    return {
        "function": function_of(entries[0][0]),
        "entries": [
            {
                "entry": entry.name,
                "store": str(entry.root),
                "kind": entry.header.kind,
                "fullgraph": entry.header.one_graph,
                "used": _used(entry),
                "graphs": entry.header.artifacts,
                "requires": entry.header.requires,
                "reason": about.reason,
                "inlined": [inlined for inlined, _digest in about.inlined],
                "guards": [
                    {
                        "source": guard.source,
                        "kind": guard.kind,
                        "parameters": guard.parameters,
                        "value": difference.constant(guard.fact),
                        "place": guard.place,
                    }
                    for guard in about.guards
                ],
            }
            for entry, about in entries
        ],
    }


def show(document: dict[str, Any], *, show_all: bool) -> None:
    """Print the entries. Without ``show_all``, print only the guards on constants, and count the others."""
    click.echo(document["function"])
    for entry in document["entries"]:
        click.echo(f"\nentry {entry['entry'][:SHOWN_DIGITS]}, used {human_age(entry['used'])} ago, in {entry['store']}")
        if entry["kind"] == "skipped":
            click.echo(f"  runs uncompiled: {entry['reason']}")
            continue
        pairs(
            [
                ("  graphs", ", ".join(key[:SHOWN_DIGITS] for key in entry["graphs"]) or "none"),
                ("  inlined", format_count(len(entry["inlined"]), "function")),
                ("  guards", f"{len(entry['guards'])}"),
            ]
        )
        if show_all:
            for guard in entry["guards"]:
                click.echo(f"    {guard['source'] or '-'}: {guard['kind']}{difference.at(guard['place'])}")
            continue
        values = _distinct(
            f"{guard['source']}: {guard['value']}{difference.at(guard['place'])}"
            for guard in entry["guards"]
            if guard["value"]
        )
        for text in shortened(values, MAX_GUARDS, indent="    "):
            click.echo(f"    {shorten_paths(in_words(text))}")
        if others := sum(not guard["value"] for guard in entry["guards"]):
            which = f"and {format_count(others, 'guard')}" if values else "all of them"
            click.echo(f"    {which} on types, tensors and code: --all shows all")


# ---------------------------------------------------------------- explain


def explain_document(store: Store, name: str) -> dict[str, Any]:
    """Explain why a function was retraced: how its other entries, nearest first, differ from its most recently used
    entry.
    """
    entries = _entries(store, name)
    entries = [item for item in entries if item[0].header.kind == "compiled"] or entries[:1]
    (last, about), *others = entries
    name = function_of(last)
    compared: list[tuple[tuple[bool, int, int], dict[str, Any]]] = []
    elsewhere, own_files = 0, files_of(last.header, about)
    for other, before in others:
        if are_of_other_files(own_files, files_of(other.header, before)):
            elsewhere += 1
        elif other.header.one_graph == last.header.one_graph:
            found = compare((last.header, about), (other.header, before))
            changes, identities = list(map(str, found.changes)), list(map(str, found.identities))
            if other.header.code != last.header.code:
                changes.insert(0, f"the source of {name} itself has changed")
            if not changes:
                changes, identities = identities, []
            document = {
                "entry": other.name,
                "store": str(other.root),
                "used": _used(other),
                "changes": changes,
                "same_program": other.header.sources == last.header.sources,
                "identities": identities,
            }
            compared.append((found.rank, document))
    compared.sort(key=lambda item: item[0])
    return {
        "function": name,
        "entry": last.name,
        "store": str(last.root),
        "used": _used(last),
        "stays": about.reason,
        "newest_trace": _newest_trace(store, name, own_files),
        "others": [document for _rank, document in compared],
        "other_programs": elsewhere,
    }


def explain(document: dict[str, Any]) -> None:
    digits = document["entry"][:SHOWN_DIGITS]
    click.echo(f"{document['function']}: entry {digits}, used {human_age(document['used'])} ago")
    if document["stays"]:
        click.echo(f"\nThe function runs uncompiled: {document['stays']}")
    elif not document["others"]:
        click.echo("\nThis program has no other entry to compare.")
    if number := document["other_programs"]:
        click.echo(f"{format_count(number, 'entry belongs', 'entries belong')} to other programs.")
    for other in document["others"][:1]:
        digits, age = other["entry"][:SHOWN_DIGITS], human_age(other["used"])
        click.echo(f"\n{outcomes.WHY_TRACED}, compared with the nearest other entry {digits}, used {age} ago:")
        for change in shortened(other["changes"], MAX_SHOWN, indent="  "):
            click.echo(f"  {shorten_paths(in_words(change))}")
        if same := len(other["identities"]):
            differ = format_count(same, "object that differs", "objects that differ")
            click.echo(f"  and {differ} only in identity or memory: see --json")
        if not other["changes"]:
            click.echo(f"  no guard differs: {document['newest_trace'] or _without_change(other)}")
    alike: dict[str, list[str]] = {}
    for other in document["others"][1:]:
        first = (
            shorten_paths(in_words(other["changes"][0]))
            if other["changes"]
            else f"no guard differs: {_without_change(other)}"
        )
        more = f", and {len(other['changes']) - 1} more" if len(other["changes"]) > 1 else ""
        alike.setdefault(f"{first}{more}", []).append(other["entry"][:SHOWN_DIGITS])
    for text, entries in shortened(list(alike.items()), MAX_SHOWN):
        click.echo(f"{f'entry {entries[0]}' if len(entries) == 1 else f'{len(entries)} entries'}: {text}")


def _without_change(other: dict[str, Any]) -> str:
    return "the trace took another path" if other["same_program"] else "the program's code or its modules differ"


def _newest_trace(store: Store, name: str, files: set[str]) -> str:
    """The recorded reason of a function's newest trace; "" if none is recorded. ``files``: the main files of the runs
    to search; empty for all runs.
    """
    known = runs(store.root)
    for run in known:
        if files and run.processes[0].main_file not in files:
            continue
        traced = [item for process in run.processes for item in process.functions if item["name"] == name]
        if not any(item["state"] in ("recorded", "traced") for item in traced):
            continue
        earlier = program_changes.earlier_processes(run, known)
        change = program_changes.describe_change(run, earlier)
        found = [
            trace.why
            for process in run.processes
            for trace in outcomes.traced_functions(process, is_new=not earlier, change=change)
            if trace.name == name and trace.state in ("recorded", "traced")
        ]
        return found[-1]
    return ""


# ---------------------------------------------------------------- inside


def _entries(store: Store, name: str) -> list[tuple[Entry, About]]:
    """The entries of a function, the most recently used first. Raises StoreError if the function has no entries."""
    known = list(store.packages.entries())
    refused = {refusal["function"]: refusal["reason"] for refusal in refusals(store)}
    names = {function_of(entry) for entry in known} | set(refused)
    found = _meant(name, names)
    if len(found) != 1:
        # Python 3.10 has no qualified names of code, so only the last part of the name is known.
        last = name.rpartition(".")[2]
        similar = {other: SequenceMatcher(None, _tail(other), _tail(name)).ratio() for other in names}
        longer_or_shorter = [
            other for other in names if f"{other}.".startswith(f"{name}.") or name.startswith(f"{other}.")
        ]
        same_last = [other for other in names if other.rpartition(".")[2] == last]
        alike = (
            found or longer_or_shorter or same_last or [other for other in names if similar[other] >= MIN_SIMILARITY]
        )
        alike.sort(key=lambda other: (-similar[other], other))
        raise StoreError(
            f"the store {store.root} has no package of {name!r}",
            f"Did you mean {' or '.join(alike[:MAX_SUGGESTED])}?" if alike else "See `precompiled cache ls`",
            code="no-such-function",
        )
    entries = [entry for entry in known if function_of(entry) == found[0]]
    if not entries:
        raise StoreError(refused[found[0]], "`precompiled cache clear` allows them again", code="package-audit")
    entries.sort(key=_used, reverse=True)
    return [(entry, About.parse(entry.about)) for entry in entries]


def _distinct(texts: Iterable[str]) -> list[str]:
    """The texts without duplicates: texts that are equal once the program's names replace Dynamo's names."""
    return list({in_words(text): text for text in reversed(list(texts))}.values())[::-1]


def _meant(name: str, names: set[str]) -> list[str]:
    """The functions that a name may mean: an exact match, else names that end with it, else names with its last two
    parts.

    The given module may differ from the recorded module, which is ``__main__`` for the program's own file. A function
    that belongs to a torch module (nn.Sequential) is named after the module's class (function_of). Users may append
    ``.forward`` to this name.
    """
    wanted = dict.fromkeys((name, name.removesuffix(".forward")))
    return (
        [exact for exact in wanted if exact in names][:1]
        or [other for given in wanted for other in names if other.endswith(f".{given}")]
        or [other for given in wanted for other in names if _tail(other) == _tail(given)]
    )


def _tail(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def function_of(entry: Entry) -> str:
    """The function's name.

    For a function of a torch module (nn.Sequential), this is the name of the module's class. The guards contain it.
    """
    if entry.header.module == WRAPPER:
        with suppress(StoreError, LookupError, TypeError):
            kinds = (
                guard.fact[0]
                for guard in About.parse(entry.about).guards
                if (guard.source, guard.kind) == ("L['fn']", "TYPE_MATCH")
            )
            return ".".join(next(kinds, ["", entry.header.module, entry.header.qualname])[1:3])
    return f"{entry.header.module}.{entry.header.qualname}"


def _used(entry: Entry) -> float:
    try:
        return entry.path.stat().st_mtime
    except OSError:  # evicted
        return 0.0
