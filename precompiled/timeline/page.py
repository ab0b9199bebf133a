"""Makes the page of `precompiled timeline`: self-contained HTML, without scripts or external files."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape

from precompiled.core.words import format_count, format_list, human_seconds
from precompiled.store.run_records import RunProcess, way
from precompiled.timeline.facts import Facts
from precompiled.timeline.picture import Bar, Section, svg
from precompiled.timeline.start import Start, by_name, queue_sections, start, worker_sections

MAX_STARTS = 16
_AXIS = "seconds since the start of the process"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 2em auto; padding: 0 1em; color: #222; }
svg { width: 100%; height: auto; border: 1px solid #ddd; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { text-align: left; padding: .15em 1.2em .15em 0; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
code { background: #f4f4f4; padding: 0 .2em; }
"""


def page(facts: Facts, command: Sequence[str], seconds: float, trace: str) -> str:
    """The page. ``seconds`` is the duration of the command, ``trace`` the name of the trace's file beside the page."""
    starts = [start(process, facts) for process in facts.processes[:MAX_STARTS]]
    title = "Where every second of the start went"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f"<title>{title}: {escape(' '.join(command))}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        f"<p><code>{escape(' '.join(command))}</code>, {human_seconds(seconds)} long, "
        f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(facts.began))}. The whole as a trace, for "
        f"<code>ui.perfetto.dev</code> or <code>chrome://tracing</code>: <code>{escape(trace)}</code>.</p>",
    ]
    if not starts:
        parts.append("<p>No process had a graph with the hook on: <code>precompiled doctor</code> says why.</p>")
    for item in starts:
        parts += _of(item, facts)
    if left := len(facts.processes) - len(starts):
        parts.append(f"<p>{format_count(left, 'more process', 'more processes')} are in the trace only.</p>")
    return "\n".join([*parts, "</body></html>\n"])


def _of(item: Start, facts: Facts) -> list[str]:
    process = item.process
    name = process.program + (f", rank {process.rank}" if process.ranks > 1 else "")
    bars = [
        Bar(f"{name}, with precompiled", item.sections, first_result(item)),
        Bar("plain torch.compile", item.plain, item.plain_seconds),
    ]
    if queued := queue_sections(facts, item.began):
        bars.append(Bar("the daemon's queue", _within(queued, item.seconds)))
    for worker in facts.workers:
        if found := _within(worker_sections(worker, item.began, facts.now), item.seconds):
            bars.append(Bar(f"worker {worker.pid}", found))
    return [
        f"<h2>{escape(name)}</h2>",
        svg(f"{name}: until all graphs run compiled", bars, f"{_AXIS}; black: the first step"),
        f"<p>{escape(_said(item))}</p>",
        _table(("", "seconds", "of plain"), _sums(item)),
        "<h3>Its graphs</h3>",
        _table(("graph", "key", "runs", "lookup", "load", "compile that it did not wait for", "why"), _graphs(process)),
    ]


def first_result(item: Start) -> float | None:
    """Return when the program began its first step, eager or compiled. None if it had no step."""
    return next((at for name, at, _ in item.sections if name in ("eager steps", "compiled steps")), None)


def _within(sections: Iterable[Section], end: float) -> list[Section]:
    return [(name, at, min(seconds, end - at)) for name, at, seconds in sections if at < end]


def _said(item: Start) -> str:
    first = first_result(item)
    text = f"All graphs had their final code after {item.seconds:.1f} s"
    if first is not None and first < item.seconds:
        text += f"; the first step began after {first:.1f} s"
    text += (
        f". Plain torch.compile, with nothing cached, would have begun its first step after about "
        f"{item.plain_seconds:.1f} s, if its compiles had taken as long as the measured compiles."
    )
    missing = []
    if item.untraced:
        what = "that Dynamo need not trace"
        missing.append(format_count(item.untraced, f"frame {what}", f"frames {what}"))
    if item.uncounted:
        missing.append(format_count(item.uncounted, "graph without an artifact", "graphs without an artifact"))
    if missing:
        text += f" This excludes {format_list(missing)}, whose compile time is unknown."
    return text


def _sums(item: Start) -> list[tuple[str, ...]]:
    ours, plain = by_name(item.sections), by_name(item.plain)
    rows = [(name, f"{ours[name]:.3f}", f"{plain[name]:.3f}") for name in dict.fromkeys([*ours, *plain])]
    return [*rows, ("the whole", f"{item.seconds:.3f}", f"{item.plain_seconds:.3f}")]


def _graphs(process: RunProcess) -> list[tuple[str, ...]]:
    return [
        (
            graph.get("name", ""),
            graph.get("key", "")[:12],
            graph.get("source") or way(graph),
            f"{graph.get('lookup_s', 0.0):.3f}",
            f"{graph.get('load_s', 0.0):.3f}",
            f"{graph.get('saved_s', 0.0):.3f}",
            graph.get("reason", ""),
        )
        for graph in process.graphs.values()
    ]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    numbers = [all(row[at].replace(".", "", 1).isdigit() for row in rows) for at in range(len(titles))]
    lines = ["<table><tr>", *(_cell("th", text, right) for text, right in zip(titles, numbers, strict=True)), "</tr>"]
    for row in rows:
        lines += ["<tr>", *(_cell("td", text, right) for text, right in zip(row, numbers, strict=True)), "</tr>"]
    return "".join([*lines, "</table>"])


def _cell(tag: str, text: str, right: bool) -> str:
    return f"<{tag}{' class=n' if right else ''}>{escape(text)}</{tag}>"
