"""Makes the page of `precompiled timeline`: self-contained HTML, without scripts or external files."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from precompiled.cli import outcomes
from precompiled.core.spans import IN_PROCESS
from precompiled.core.words import format_count, format_list, human_seconds, sentence
from precompiled.store.run_records import NOT_SERVED, RunProcess, spans_of, way
from precompiled.timeline.facts import Facts
from precompiled.timeline.picture import Bar, Section, svg
from precompiled.timeline.start import Start, by_name, queue_sections, start, worker_sections

MAX_STARTS = 16
MAX_TRACED = 8
_FULL_CACHE = "plain, its cache full (at least)"
_AXIS = "seconds since the start of the process; the vertical lines mark the end of the first step"
_STYLE = """
:root { --page: #fff; --text: #222; --soft: #666; --line: #ddd; --tile: #f5f6f8; --good: #1f7a45; --bar: #9db8d6 }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181c; --text: #e8e8e8; --soft: #a0a0a0; --line: #2c3036; --tile: #20242a; --good: #6fd397;
    --bar: #3c5a7d }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 1.5em auto; padding: 0 1em;
  color: var(--text); background: var(--page) }
h1 { font-size: 1.5em; line-height: 1.25 } h1 b { color: var(--good) } h2 { margin-top: 2em }
p.soft { color: var(--soft) }
.tiles { display: flex; flex-wrap: wrap; gap: .8em; margin: 1em 0 }
.tile { flex: 1 1 10em; background: var(--tile); border-radius: .5em; padding: .7em 1em }
.tile strong { display: block; font-size: 1.6em; font-variant-numeric: tabular-nums }
.tile span { color: var(--soft) }
.wide { overflow-x: auto } svg { width: 100%; min-width: 760px; height: auto }
table { border-collapse: collapse; margin: 1em 0 } th { font-weight: 600; border-bottom: 1px solid var(--line) }
th, td { text-align: left; padding: .2em 1.2em .2em 0; vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.bar { display: inline-block; height: .7em; background: var(--bar); border-radius: 2px }
code { background: var(--tile); padding: 0 .2em }
"""


def page(facts: Facts, command: Sequence[str], seconds: float, trace: str) -> str:
    """The page about one or more processes.

    ``seconds`` is the duration of the command, ``trace`` the name of the trace's file beside the page.
    """
    starts = [start(process, facts) for process in facts.processes[:MAX_STARTS]]
    title = "Where every second of the start went"
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}: {escape(' '.join(command))}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{_headline(starts[0])}</h1>",
        f'<p class="soft"><code>{escape(" ".join(command))}</code>, {human_seconds(seconds)} long, '
        f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(facts.began))}. Trace for <code>ui.perfetto.dev</code>: "
        f"<code>{escape(trace)}</code>. Causes: <code>precompiled explain</code>.</p>",
    ]
    for item in starts:
        parts += _of(item, facts)
    if left := len(facts.processes) - len(starts):
        parts.append(f"<p>{format_count(left, 'more process', 'more processes')} are in the trace only.</p>")
    return "\n".join([*parts, "</body></html>\n"])


def headline(facts: Facts) -> str:
    """The page's headline as a sentence for a terminal."""
    return sentence(re.sub("</?b>", "", _headline(start(facts.processes[0], facts))))


def _of(item: Start, facts: Facts) -> list[str]:
    process = item.process
    name = process.program + (f", rank {process.rank}" if process.ranks > 1 else "")
    bars = [
        Bar("with precompiled", item.sections, item.first_step),
        *([Bar(_empty_caches(item), item.plain, item.plain_seconds)] if item.is_comparable else []),
        *([] if item.is_new else [Bar(_FULL_CACHE, item.warm, item.warm_seconds)]),
    ]
    if item.in_process:
        bars.insert(1, Bar("compiled in this process", item.in_process))
    if queued := queue_sections(facts, item.began):
        bars.append(Bar("the daemon's queue", _within(queued, item.seconds)))
    for worker in facts.workers:
        if found := _within(worker_sections(worker, item.began, facts.now), item.seconds):
            bars.append(Bar(f"worker {worker.pid}", found))
    title = f"{name}: until {'the program ended' if _pending(item) else 'all graphs run compiled'}"
    parts = [
        f"<h2>{escape(name)}</h2>",
        _tiles(item),
        f'<div class="wide">{svg(title, bars, _AXIS)}</div>',
        f'<p class="soft">{escape(_said(item))}</p>',
        _table(("", "precompiled", *(["plain"] if item.is_comparable else []), ""), _sums(item)),
        f"<h3>{outcomes.WHY_COMPILED}</h3>",
        _table(
            ("graph", "key", "runs", "lookup", "load", "compiled in process", "compile saved", "why"), _graphs(process)
        ),
    ]
    if traced := _traced(process, is_new=process.identity in facts.new):
        parts += [f"<h3>{outcomes.WHY_TRACED}</h3>", _table(("function", "seconds", "why"), traced)]
    return parts


def _headline(item: Start) -> str:
    """The time that precompiled gained, such as ``26.4 s earlier than with plain torch.compile``. If the time with
    plain torch.compile is unknown, the time at which the graphs had their final code.
    """
    of_new = "First recorded run of this program"
    if item.first_step is None:
        return f"{of_new}. {_final_code(item)}" if item.is_new else _final_code(item)
    ours, plain = item.first_step, item.plain_seconds
    ended = f"{f'{of_new}: the' if item.is_new else 'The'} first step ended after {ours:.1f} s"
    caches = "" if item.is_new else " and empty caches"  # a first run cannot have full caches
    if _pending(item) or not item.is_comparable:
        then = _final_code(item)
        return f"{ended}, and {then[0].lower()}{then[1:]}"
    if item.is_partial:
        return f"{ended}. With plain torch.compile{caches}, it takes at least {plain:.1f} s"
    if abs(plain - ours) < 0.05:
        return f"{ended}, as with plain torch.compile{caches}"
    how = "earlier" if plain >= ours else "later"
    gain = f"<b>{abs(plain - ours):.1f} s {how}</b>"
    return f"{ended}, {gain} than with plain torch.compile{caches} ({plain:.1f} s)"


def _empty_caches(item: Start) -> str:
    return "plain, empty caches" + (" (at least)" if item.is_partial else "")


def _pending(item: Start) -> int:
    return sum(graph.get("state") == "pending" for graph in item.process.graphs.values())


def _final_code(item: Start) -> str:
    if pending := _pending(item):
        ended = " when the program ended" if item.process.ended else ""
        return f"{format_count(pending, 'graph was', 'graphs were')} not compiled yet{ended} after {item.seconds:.1f} s"
    return f"All graphs had their final code after {item.seconds:.1f} s"


def _tiles(item: Start) -> str:
    waited = by_name(item.sections)
    tiles = [
        ("first step ended", item.first_step),
        *([(_empty_caches(item), item.plain_seconds)] if item.is_comparable else []),
        *([] if item.is_new else [(_FULL_CACHE, item.warm_seconds)]),
        ("tracing", waited["Dynamo: tracing and guards"]),
        ("waiting for compiles", waited["waiting for the artifact"]),
    ]
    shown = "".join(
        f'<div class="tile"><strong>{"unknown" if seconds is None else f"{seconds:.1f} s"}</strong>'
        f"<span>{escape(what)}</span></div>"
        for what, seconds in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _within(sections: Iterable[Section], end: float) -> list[Section]:
    return [(name, at, min(seconds, end - at)) for name, at, seconds in sections if at < end]


def _said(item: Start) -> str:
    text = f"{_final_code(item)}."
    if item.is_new:
        text += " No earlier run of the program is recorded, and the store had none of its graphs."
    if item.is_comparable:
        text += (
            " The estimate of plain torch.compile comes from the measured times of this process and its compiles. A "
            "compile beside running steps may take longer than a compile alone."
        )
    if not item.is_new:
        text += " With its own cache full, plain torch.compile still traces."
    if item.first_step is None:
        text += " The end of the first step is unknown, because the program called no graph twice."
    missing = []
    if item.untraced:
        what = "that Dynamo need not trace"
        missing.append(format_count(item.untraced, f"frame {what}", f"frames {what}"))
    if item.uncounted:
        missing.append(format_count(item.uncounted, "graph without an artifact", "graphs without an artifact"))
    if missing and item.is_comparable:
        text += f" This excludes {format_list(missing)}, whose compile time is unknown."
    return text


def _sums(item: Start) -> list[tuple[str, ...]]:
    ours, plain = by_name(item.sections), by_name(item.plain)
    names = dict.fromkeys([*ours, *plain])
    most = max([*ours.values(), *plain.values()], default=1.0) or 1.0
    rows = [(name, _seconds(ours[name]), _seconds(plain[name]), f"bar:{ours[name] / most:.4f}") for name in names]
    rows.append(("the whole", _seconds(item.seconds), _seconds(item.plain_seconds), ""))
    return [*rows] if item.is_comparable else [(name, seconds, bar) for name, seconds, _plain, bar in rows if seconds]


def _seconds(seconds: float) -> str:
    """Seconds for a table; "" if they would be shown as 0."""
    return f"{seconds:.2f}" if seconds >= 0.005 else ""


def _graphs(process: RunProcess) -> list[tuple[str, ...]]:
    return [
        (
            graph.get("name", ""),
            graph.get("key", "")[:12],
            _runs(graph),
            _seconds(graph.get("lookup_s", 0.0)),
            _seconds(graph.get("load_s", 0.0)),
            _seconds(sum(span.seconds for span in spans_of(graph) if span.what == IN_PROCESS)),
            _seconds(graph.get("saved_s", 0.0)),
            outcomes.describe_reason(graph),
        )
        for graph in process.graphs.values()
    ]


def _runs(graph: Mapping[str, Any]) -> str:
    """How a graph runs: the source of its artifact, or the word for a graph without one."""
    found = way(graph)
    return str(graph["source"]) if found == "compiled" else NOT_SERVED.get(found, found)


def _traced(process: RunProcess, *, is_new: bool) -> list[tuple[str, ...]]:
    """The longest traces, with the reasons that `explain` gives."""
    found = [trace for trace in outcomes.traced_functions(process, is_new=is_new) if not trace.is_helper]
    longest = sorted(found, key=lambda trace: -trace.seconds)[:MAX_TRACED]
    return [(trace.name, _seconds(trace.seconds), trace.why) for trace in longest]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rows = list(rows)
    numbers = [all(row[at].replace(".", "", 1).isdigit() or not row[at] for row in rows) for at in range(len(titles))]
    lines = ["<table><tr>", *(_cell("th", text, right) for text, right in zip(titles, numbers, strict=True)), "</tr>"]
    for row in rows:
        lines += ["<tr>", *(_cell("td", text, right) for text, right in zip(row, numbers, strict=True)), "</tr>"]
    return f'<div class="wide">{"".join([*lines, "</table></div>"])}'


def _cell(tag: str, text: str, right: bool) -> str:
    if text.startswith("bar:"):
        width = 12 * float(text.removeprefix("bar:"))
        return f'<{tag}><span class="bar" style="width: {width:.1f}em"></span></{tag}>'
    return f"<{tag}{' class=n' if right else ''}>{escape(text)}</{tag}>"
