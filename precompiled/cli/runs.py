"""Shows runs for `status`, `explain` and `cache stats`: how the graphs of each rank run, and why some are unserved."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import click

from precompiled.cli import checks_store, misses, outcomes
from precompiled.cli.checks_daemon import existing_parent
from precompiled.cli.key_prefixes import completion_settings
from precompiled.cli.output import SHOWN_DIGITS, human_age, pairs, say_left_out, shortened, table
from precompiled.cli.pending_graphs import PendingCauses
from precompiled.core.check import Check
from precompiled.core.config import Settings
from precompiled.core.errors import STORE_UNWRITABLE, PrecompiledError
from precompiled.core.names import shorten_paths
from precompiled.core.words import describe_after_swap, describe_saved, format_count, human_seconds
from precompiled.graph.advice import Cause
from precompiled.store import run_records
from precompiled.store.run_records import BY_DAEMON, NO_RUN, NOT_SERVED, RUN_FIRST, RUNS, Run, RunProcess, runs, way

MAX_SHOWN = 10
RECENT_S = 60.0  # a run that ended longer ago may not be the run that the user means


def live(settings: Settings) -> list[dict[str, Any]]:
    """The runs with a live process, for `precompiled status`, without their graphs."""
    causes = PendingCauses(settings)
    return [_document(run, causes, graphs=False) for run in runs(settings.cache_dir) if run.is_alive]


def show_live(found: Sequence[dict[str, Any]]) -> None:
    for run in found:
        click.echo(f"\n{run['program']}, {run['name']}, began {human_age(run['began'])} ago")
        for line in run["said"]:
            click.echo(f"  {line}")


def explain(settings: Settings, name: str) -> tuple[dict[str, Any], Callable[[], None]]:
    """Explain a run, ``name`` or "last". Returns the document, and a function that prints it. Raises
    PrecompiledError.
    """
    known = runs(settings.cache_dir)
    run = find_run(settings, name, known)
    summary = misses.summary(settings, run, known)
    document = {
        **_document(run, PendingCauses(settings), graphs=True),
        "summary": summary.sentence(),
        "hits": summary.hits,
        "edited": summary.edited,
        "misses": [miss.document() for miss in summary.misses],
        "trace_s": summary.trace_s,
        "waited_s": summary.waited_s,
        "is_first_run": summary.is_new,
    }
    return document, lambda: _show(run, summary, document["said"], is_newest=name != run.name)


def graph_of(settings: Settings, prefix: str) -> str | None:
    """Return the recorded outcome of a graph that the store lacks, or None if no run recorded the graph."""
    for run in runs(settings.cache_dir):
        for graph in run.graphs:
            if graph.get("key", "").startswith(prefix.lower()):
                why = outcomes.describe_reason(graph) or "it is no longer there"
                said = "pending" if way(graph) == "pending" else why
                return f"{graph.get('name', '')} of {run.processes[0].program} ({run.name}): {said}"
    return None


def awaited_graphs(settings: Settings) -> list[dict[str, Any]]:
    """The pending graphs of running processes, youngest first."""
    found = [
        {"key": graph.get("key", ""), "name": graph.get("name", ""), "program": process.program, "since": graph["at"]}
        for run in runs(settings.cache_dir)
        for process in run.processes
        if process.is_alive
        for graph in process.graphs.values()
        if way(graph) == "pending"
    ]
    return sorted(found, key=lambda graph: -graph["since"])


def show_awaited(found: Sequence[dict[str, Any]]) -> None:
    for graph in shortened(found, MAX_SHOWN):
        since = human_seconds(max(0.0, time.time() - graph["since"]))
        click.echo(
            f"{graph['name']} {graph['key'][:SHOWN_DIGITS]} of {graph['program']} is not compiled yet "
            f"(pending for {since})"
        )


def stats(settings: Settings, name: str) -> tuple[dict[str, Any], Callable[[], None]]:
    """Collect a run's figures per rank. Returns the document, and a function that prints it."""
    run = find_run(settings, name, runs(settings.cache_dir))
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


def _numbers(process: RunProcess) -> dict[str, Any]:
    """A process's numbers: graphs by how they run, traced functions, and seconds."""
    graphs = list(process.graphs.values())
    sources = Counter(graph["source"] if _is_served(graph) else "" for graph in graphs)
    pending = sum(way(graph) == "pending" for graph in graphs)
    return {
        **{source: sources[source] for source in BY_DAEMON},
        "pending": pending,
        "not_served": sources[""] - pending,
        "traced": len(process.functions),
        "load_s": sum(graph.get("lookup_s", 0) + graph.get("load_s", 0) for graph in graphs),
        "saved_s": run_records.saved_s(process),
    }


def find_run(settings: Settings, name: str, known: Sequence[Run]) -> Run:
    """The run that ``name`` means: a run's name, "last", or a program's name or path (the program's newest run).

    ``known``: all recorded runs. Raises PrecompiledError if no run matches.
    """
    by_name = (run for run in known if name in ("last", run.name))
    path = os.path.realpath(name)
    by_path = (run for run in known if (main := run.processes[0].main_file) and os.path.realpath(main) == path)
    by_program = (run for run in known if name == run.processes[0].program)
    found = next((run for run in chain(by_name, by_path, by_program)), None)
    if not known:
        run_records.check_readable(settings.cache_dir)
        _check_that_runs_are_kept(settings)
    if found is None:
        programs = list(dict.fromkeys(run.processes[0].program for run in known))
        more = f" and {len(programs) - MAX_SHOWN} more" if len(programs) > MAX_SHOWN else ""
        of_programs = f"The recorded runs are of {', '.join(programs[:MAX_SHOWN])}{more}"
        names = ", ".join(f"{run.name} ({run.processes[0].program})" for run in known[:5])
        is_file = looks_like_file(name)
        action = of_programs if is_file else f"The last runs are {names}"
        raise PrecompiledError(
            f"there is no run {'of ' if is_file else ''}{name!r}" if known else NO_RUN,
            action if known else RUN_FIRST,
            code="no-such-run",
        )
    return found


def looks_like_file(text: str) -> bool:
    """Whether an argument is the path of a program and not the name of a run."""
    return os.sep in text or text.endswith((".py", ".ipynb"))


def names_run(settings: Settings, text: str) -> bool:
    """Whether an argument of `explain` means a run. It is then a program's path, a program's name or a run's name."""
    known = runs(settings.cache_dir)
    return looks_like_file(text) or any(text in (run.name, run.processes[0].program) for run in known)


def complete_program(ctx: click.Context, begun: str) -> list[str]:
    """Shell completion: names of programs with runs."""
    settings = completion_settings(ctx)
    known = runs(settings.cache_dir) if settings is not None else []
    return list(dict.fromkeys(name for run in known if (name := run.processes[0].program).startswith(begun)))


def _check_that_runs_are_kept(settings: Settings) -> None:
    """Raise PrecompiledError if runs cannot be recorded. A program without a record may then have used the hook."""
    store = checks_store.place(settings)
    kept_in = settings.cache_dir / RUNS
    if store.state == "ok" and kept_in.exists() and not os.access(kept_in, os.W_OK | os.X_OK):
        store = Check("store", "warn", f"{kept_in} cannot be written", f"Make {kept_in} writable")
    if store.state == "ok":
        place = settings.cache_dir if settings.cache_dir.exists() else existing_parent(settings.cache_dir)
        space = checks_store.space(settings.cache_dir, shutil.disk_usage(place).free, None)
        store = space if space.state == "fail" else store
    if store.state != "ok":
        raise PrecompiledError(f"runs cannot be recorded: {store.message}", store.action, code=STORE_UNWRITABLE)


def _document(run: Run, causes: PendingCauses, *, graphs: bool) -> dict[str, Any]:
    first = run.processes[0]
    document: dict[str, object] = {
        "name": run.name,
        "program": first.program,
        "ranks": run.ranks,
        "began": run.since,
        "alive": run.is_alive,
        "said": describe_graphs(run, causes),
    }
    if graphs:
        document["processes"] = [
            {
                "rank": process.rank,
                "pid": process.pid,
                "alive": process.is_alive,
                "ended": process.ended or None,
                "graphs": list(process.graphs.values()),
                "functions": process.functions,
            }
            for process in run.processes
        ]
    return document


def describe_graphs(run: Run, causes: PendingCauses) -> list[str]:
    """How the graphs of each rank run, as sentences. Ranks with the same sentence are grouped."""
    by_text: dict[str, list[int]] = {}
    served = []
    for process in run.processes:
        text = _of_a_process(process, causes)
        if text is None:
            served.append(process.rank)
        else:
            by_text.setdefault(text, []).append(process.rank)
    # A process counts the calls of its graphs, and records the numbers when it ends.
    singular, plural = ("has", "have") if run.is_alive else ("runs", "run")
    code = "code that the daemon compiled"
    if run.ranks == 1:
        number = sum(len(process.graphs) for process in run.processes)
        graphs = f"its graph {singular}" if number == 1 else f"all {number} graphs {plural}"
        return list(by_text) or [f"{graphs} {code}" if number else "no graph yet"]
    most = max((len(process.graphs) for process in run.processes), default=0)
    verb, theirs = (singular, "all its graphs") if len(served) == 1 else (plural, "all their graphs")
    served_so = f"{verb} {code} for {theirs}" if run.is_alive else f"{verb} {theirs} with {code}"
    lines = [f"{len(served)} of {run.ranks} ranks {served_so} (up to {format_count(most, 'graph')} each)"]
    lines += [f"{_ranks(ranks)}: {text}" for text, ranks in by_text.items()]
    if absent := sorted({*range(run.ranks)} - {process.rank for process in run.processes}):
        lines.append(f"{_ranks(absent)}: no graph yet, or on another host")
    return lines


def _of_a_process(process: RunProcess, causes: PendingCauses) -> str | None:
    """A sentence about a process's graphs that do not run daemon-compiled code (yet). None if all graphs run it."""
    parts = []
    pending = [graph for graph in process.graphs.values() if way(graph) == "pending"]
    reasons_of: dict[str, Counter[str]] = {name: Counter() for name in NOT_SERVED}
    for graph in process.graphs.values():
        if (found := way(graph)) in NOT_SERVED:
            reason = graph.get("reason") or "no reason"
            reasons_of[found][outcomes.IN_WORDS.get(reason, reason)] += 1
    if pending:
        since = time.time() - min(graph["at"] for graph in pending)
        waits = f"pending for {human_seconds(since)}" if process.is_alive else "pending at the end"
        why = causes.count(pending) if process.is_alive else ""
        parts.append(f"{format_count(len(pending), 'graph')} {waits}" + (f" ({why})" if why else ""))
    for name, reasons in reasons_of.items():
        if reasons:
            codes = ", ".join(code if number == 1 else f"{code} {number}" for code, number in reasons.most_common())
            parts.append(f"{format_count(sum(reasons.values()), 'graph')} {NOT_SERVED[name]} ({codes})")
    unused = Counter(said for graph in process.graphs.values() if (said := outcomes.describe_lack_of_calls(graph)))
    parts += [f"{format_count(number, 'graph')} {said}" for said, number in unused.items()]
    if not process.is_alive and not process.ended:
        parts.append("the process was killed")
    return "; ".join(parts) or None


def _is_served(graph: Mapping[str, object]) -> bool:
    return way(graph) == "compiled"


def _ranks(ranks: Iterable[int]) -> str:
    numbers = sorted(ranks)
    shown = ", ".join(map(str, numbers[:MAX_SHOWN])) + (" and more" if len(numbers) > MAX_SHOWN else "")
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {shown}"


def _show(run: Run, summary: misses.Summary, said: Sequence[str], *, is_newest: bool) -> None:
    ended = max(process.last_seen for process in run.processes)
    end = "runs still" if run.is_alive else f"{human_seconds(ended - run.since)} long"
    click.echo(f"{run.processes[0].program}, {run.name}, began {human_age(run.since)} ago, {end}")
    if is_newest and not run.is_alive and time.time() - ended > RECENT_S:
        click.echo(
            "  the newest recorded run; runs with PRECOMPILED=0 or without a call of a compiled function have no record"
        )
    for line in (summary.sentence(), summary.seconds(), *(said if summary.graphs else ())):
        if line:
            click.echo(f"  {line}")
    if summary.edited:
        click.echo(f"  edited since the previous run: {', '.join(summary.edited[:MAX_SHOWN])}")
    _show_seconds(run.graphs, sum(map(run_records.saved_s, run.processes)))
    _show_calls(run.graphs)
    if summary.misses:
        click.echo(f"\n{outcomes.WHY_COMPILED}:")
    for miss in shortened(summary.misses, MAX_SHOWN):
        _show_miss(miss, run)
    _show_traced(run, is_new=summary.is_new, change=summary.change)


def _show_seconds(graphs: Sequence[Mapping[str, Any]], saved: float) -> None:
    looked = sum(graph.get("lookup_s", 0) + graph.get("load_s", 0) for graph in graphs)
    rows = [("lookups and loads", human_seconds(looked))] if looked else []
    rows += [("compiles saved", describe_saved(saved))] if saved else []
    if rows:
        click.echo()
        pairs(rows)


def _show_calls(graphs: Sequence[Mapping[str, Any]]) -> None:
    """Print how many calls of each graph ran eager and compiled, summed over the ranks. The calls of graphs that torch
    runs without precompiled are not counted ("-").
    """
    calls: dict[tuple[str, str], Counter[str]] = {}
    after_swap: dict[str, Counter[str]] = {}
    for graph in graphs:
        number = calls.setdefault((graph.get("name", ""), graph.get("key", "")[:SHOWN_DIGITS]), Counter())
        if "calls_compiled" in graph:  # a process counts its calls at its end
            number.update(eager=graph["calls_eager"], compiled=graph["calls_compiled"])
            after_swap.setdefault(graph.get("name", ""), Counter()).update(graph.get("eager_after_swap", {}))
    if any(calls.values()):
        click.echo()
        rows = [
            [*which, *(str(number[how]) if number else "-" for how in ("eager", "compiled"))]
            for which, number in calls.items()
        ]
        numbers = ["eager calls", "compiled calls"]
        table(["graph", "key", *numbers], rows[:MAX_SHOWN], right=numbers)
        say_left_out(rows, MAX_SHOWN)
        for name, number in list(after_swap.items())[:MAX_SHOWN]:
            if said := describe_after_swap(number):
                click.echo(f"  {name}: {said}")


def _show_traced(run: Run, *, is_new: bool, change: str) -> None:
    """Print the traced functions and why they were traced. Audited functions, and helpers of Python and torch, are only
    counted.
    """
    found = [
        trace for process in run.processes for trace in outcomes.traced_functions(process, is_new=is_new, change=change)
    ]
    audited = {trace.name for trace in found if trace.state == outcomes.AUDITED}
    found = [trace for trace in found if trace.state != outcomes.AUDITED]
    if audited:
        click.echo(f"\n{describe_audit(len(audited))}")
    helpers = [trace for trace in found if trace.is_helper]
    # A process reports the reasons of its traces when it ends.
    others = [trace for trace in found if not trace.is_helper and trace.state]
    rows = [(trace.name, human_seconds(trace.seconds), trace.state, trace.why) for trace in others]
    _show_table(f"{outcomes.WHY_TRACED}:", rows)
    if helpers:
        spent = human_seconds(sum(trace.seconds for trace in helpers))
        number = len({trace.name for trace in helpers})
        click.echo(f"  and {format_count(number, 'helper')} of Python and torch, {spent}: --json has them all")


def describe_audit(functions: int) -> str:
    """Say that a process traced functions to check their packages."""
    return (
        f"This run also traced {format_count(functions, 'function')} to check stored packages, and all are right.\n"
        "  One process in 50 does so (the setting package_audit)."
    )


def _show_miss(miss: misses.Miss, run: Run) -> None:
    number = len(miss.ranks)
    several = f" ({format_count(number, 'graph')})" if number > 1 else ""
    ranks = f"  {_ranks(dict.fromkeys(miss.ranks))}" if run.ranks > 1 else several
    title = " ".join(filter(None, [miss.name, miss.key[:SHOWN_DIGITS], miss.became]))
    click.echo(f"{title}{ranks}" + (f": {miss.cost}" if miss.cost else ""))
    for cause in miss.causes:
        show_cause(cause, "  ", is_served=miss.is_served)
    for text in filter(None, (miss.since, miss.later, "" if miss.remedy in miss.since else miss.remedy)):
        click.echo(f"  {text}")


def show_cause(cause: Cause, indent: str, *, is_served: bool) -> None:
    """Print a cause of a miss: the old and the new value, the source line, and the advice."""
    click.echo(f"{indent}{cause.what if cause.kind == 'new' else f'{cause.short}: {cause.what}'}")
    for text in filter(None, (shorten_paths(cause.line), cause.advise(is_served=is_served))):
        click.echo(f"{indent}  {text}")


def _show_table(title: str, rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows under a title. Prints equal rows of several ranks once, with the number of ranks."""
    different = Counter(rows)
    if not different:
        return
    click.echo(f"\n{title}")
    for row, number in shortened(list(different.items()), MAX_SHOWN, indent="  "):
        times = f"{format_count(number, 'time')}  " if number > 1 else ""
        click.echo(f"  {times}{'  '.join(filter(None, row))}")
