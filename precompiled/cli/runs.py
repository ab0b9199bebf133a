"""Runs, as people ask for them: which ranks of a job run what the daemon compiled, and why the others do not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from precompiled.cli.output import human_age, pairs, table
from precompiled.core.config import Settings
from precompiled.core.errors import PrecompiledError
from precompiled.core.words import counted, human_seconds
from precompiled.store.runs import BY_DAEMON, Process, Run, runs, way

MAX_SHOWN = 10
# The ways (store/runs.py) of graphs that no artifact serves, in words.
_NOT_SERVED = {"eager": "eager", "in process": "compiled in process", "error": "not run, an error"}


def live(settings: Settings) -> list[dict[str, Any]]:
    """The runs of which a process is alive, for `precompiled status`: fields of ``document``, without the graphs."""
    return [_document(run, graphs=False) for run in runs(settings.cache_dir) if run.is_alive]


def show_live(found: Sequence[dict[str, Any]]) -> None:
    for run in found:
        click.echo(f"\n{run['program']}, {run['name']}, began {human_age(run['began'])} ago")
        for line in run["said"]:
            click.echo(f"  {line}")


def explain(settings: Settings, name: str) -> tuple[dict[str, Any], Callable[[], None]]:
    """What became of a run, ``name`` or "last": the document, and what shows it. Raises PrecompiledError."""
    run = _named(settings, name)
    return _document(run, graphs=True), lambda: _show(run)


def stats(settings: Settings, name: str) -> tuple[dict[str, Any], Callable[[], None]]:
    """What a run, ``name`` or "last", comes to in numbers, rank by rank: the document, and what shows it."""
    run = _named(settings, name)
    ranks = [
        {"rank": process.rank, "pid": process.pid, "graphs": len(process.graphs), **_numbers(process)}
        for process in run.processes
    ]
    document = {"name": run.name, "program": run.processes[0].program, "ranks": ranks}

    def show() -> None:
        click.echo(f"{document['program']}, {run.name}")
        names = ["rank", "graphs", *_numbers(run.processes[0])]
        rows = [
            [human_seconds(rank[name]) if name.endswith("_s") else str(rank[name]) for name in names] for rank in ranks
        ]
        titles = [name.removesuffix("_s").replace("_", " ") for name in names]
        table(titles, rows, right=titles)

    return document, show


def _numbers(process: Process) -> dict[str, Any]:
    """Graphs by how they run, functions that were traced, and seconds."""
    graphs = list(process.graphs.values())
    sources = Counter(graph["source"] if _is_served(graph) else "" for graph in graphs)
    pending = sum(way(graph) == "pending" for graph in graphs)
    return {
        **{source: sources[source] for source in BY_DAEMON}, "pending": pending, "not_served": sources[""] - pending,
        "traced": len(process.functions),
        "load_s": sum(graph.get("lookup_s", 0) + graph.get("load_s", 0) for graph in graphs),
        "saved_s": sum(graph.get("saved_s", 0) for graph in graphs),
    }  # fmt: skip


def _named(settings: Settings, name: str) -> Run:
    """Raises PrecompiledError where there is none."""
    known = runs(settings.cache_dir)
    found = next((run for run in known if name in ("last", run.name)), None)
    if found is None:
        names = ", ".join(run.name for run in known[:5])
        raise PrecompiledError(
            f"there is no run {name}" if known else "no run has used the hook yet",
            f"The last ones are {names}" if known else "Run it once: `precompiled run -- python train.py`",
            code="no-such-run",
        )
    return found


def _document(run: Run, *, graphs: bool) -> dict[str, Any]:
    first = run.processes[0]
    document: dict[str, Any] = {
        "name": run.name, "program": first.program, "ranks": run.ranks, "began": run.began, "alive": run.is_alive,
        "said": said(run),
    }  # fmt: skip
    if graphs:
        document["processes"] = [
            {"rank": process.rank, "pid": process.pid, "alive": process.is_alive, "ended": process.ended or None,
             "graphs": list(process.graphs.values()), "functions": process.functions}
            for process in run.processes
        ]  # fmt: skip
    return document


def said(run: Run) -> list[str]:
    """How the graphs of each rank run, in sentences: ranks of which the same is to be said are told together."""
    by_text: dict[str, list[int]] = {}
    served = []
    for process in run.processes:
        text = _of_a_process(process)
        if text is None:
            served.append(process.rank)
        else:
            by_text.setdefault(text, []).append(process.rank)
    if run.ranks == 1:
        number = len(run.processes[0].graphs)
        graphs_run = "its graph runs" if number == 1 else f"all {number} graphs run"
        return list(by_text) or [f"{graphs_run} compiled by the daemon" if number else "no graph yet"]
    graphs = max((len(process.graphs) for process in run.processes), default=0)
    run_theirs = "runs all its graphs" if len(served) == 1 else "run all their graphs"
    most = f"up to {counted(graphs, 'graph')} each"
    lines = [f"{len(served)} of {run.ranks} ranks {run_theirs} compiled by the daemon ({most})"]
    lines += [f"{_ranks(ranks)}: {text}" for text, ranks in by_text.items()]
    if absent := sorted({*range(run.ranks)} - {process.rank for process in run.processes}):
        lines.append(f"{_ranks(absent)}: no graph yet, or on another host")
    return lines


def _of_a_process(process: Process) -> str | None:
    """What is to be said of a process's graphs; None where all of them run as the daemon compiled them."""
    parts = []
    pending = [graph for graph in process.graphs.values() if way(graph) == "pending"]
    reasons_of: dict[str, Counter[str]] = {name: Counter() for name in _NOT_SERVED}
    for graph in process.graphs.values():
        if (found := way(graph)) in _NOT_SERVED:
            reasons_of[found][graph.get("reason") or "no reason"] += 1
    if pending:
        since = time.time() - min(graph["at"] for graph in pending)
        waits = f"pending for {human_seconds(since)}" if process.is_alive else "pending at the end"
        parts.append(f"{counted(len(pending), 'graph')} {waits}")
    for name, reasons in reasons_of.items():
        if reasons:
            codes = ", ".join(code if number == 1 else f"{code} {number}" for code, number in reasons.most_common())
            parts.append(f"{counted(sum(reasons.values()), 'graph')} {_NOT_SERVED[name]} ({codes})")
    if not process.is_alive and not process.ended:
        parts.append("it ended without a word")
    return "; ".join(parts) or None


def _is_served(graph: dict[str, Any]) -> bool:
    return way(graph) == "compiled"


def _ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    shown = ", ".join(map(str, numbers[:MAX_SHOWN])) + (" and more" if len(numbers) > MAX_SHOWN else "")
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {shown}"


def _show(run: Run) -> None:
    graphs = [graph for process in run.processes for graph in process.graphs.values()]
    sources = Counter(graph["source"] for graph in graphs if _is_served(graph))
    functions = [item for process in run.processes for item in process.functions]
    end = "runs still" if run.is_alive else f"{human_seconds(_lasted(run))} long"
    click.echo(f"{run.processes[0].program}, {run.name}, began {human_age(run.began)} ago, {end}")
    for line in said(run):
        click.echo(f"  {line}")
    click.echo()
    pairs([
        ("graphs", f"{len(graphs)}: {_counts(sources) or 'none by the daemon'}"),
        ("not traced", f"{sources['package']} of them"),
        ("lookups and loads", human_seconds(sum(g.get("lookup_s", 0) + g.get("load_s", 0) for g in graphs))),
        ("compiles saved", human_seconds(sum(g.get("saved_s", 0) for g in graphs))),
    ])  # fmt: skip
    _show_table("misses and what was not served", [
        (graph.get("name", ""), graph.get("key", "")[:12], graph.get("source") or graph.get("state", ""), _why(graph))
        for graph in graphs
        if graph.get("source") not in ("hit", "package")
    ])  # fmt: skip
    _show_table("functions that were traced", [
        (item["name"], item["state"], item["reason"], "; ".join(dict.fromkeys(item["reasons"])) or item["message"])
        for item in functions
    ])  # fmt: skip


def _why(graph: dict[str, Any]) -> str:
    if graph.get("reason"):
        return f"{graph['reason']}: {graph['message'].partition(chr(10))[0]}"
    return f"`precompiled explain {graph['key'][:12]}` says what was new" if graph.get("key") else ""


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.most_common())


def _show_table(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """What ranks have alike is told once."""
    different = Counter(rows)
    if not different:
        return
    click.echo(f"\n{title}")
    for row, number in list(different.items())[:MAX_SHOWN]:
        times = f"{counted(number, 'time')}  " if number > 1 else ""
        click.echo(f"  {times}{'  '.join(filter(None, row))}")
    if len(different) > MAX_SHOWN:
        click.echo(f"  and {len(different) - MAX_SHOWN} more: --json has them all")


def _lasted(run: Run) -> float:
    ends = [process.ended or max((graph["at"] for graph in process.graphs.values()), default=process.began)
            for process in run.processes]  # fmt: skip
    return max(ends) - min(process.began for process in run.processes)
