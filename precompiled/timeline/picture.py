"""Draws bars of sections, one below the other, as an SVG picture with a legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

# The order is that of a start, and of the legend.
COLOURS = {
    "Python, and the hook": "#bbbbbb",
    "import torch": "#999999",
    "import transformers": "#777777",
    "the model": "#555555",
    "the program": "#6b6b6b",
    "import Dynamo": "#c5b0d5",
    "artifacts or package, before the call": "#e7ba52",
    "a package instead of a trace": "#bcbd22",
    "Dynamo: tracing and guards": "#9467bd",
    "capture, key, lookup": "#17becf",
    "sending the graph": "#9edae5",
    "waiting for the artifact": "#f7b6d2",
    "load of the artifact": "#1f77b4",
    "AOTAutograd and Inductor, or their cache": "#d62728",
    "Inductor, backward": "#ff9896",
    "the rest of the backend": "#8c564b",
    "the step": "#2ca02c",
    "eager steps": "#c7e9c0",
    "compiled steps": "#2ca02c",
    "queued": "#dddddd",
    "worker: starts": "#ffd8a8",
    "worker: compiles": "#ff7f0e",
    "AOTAutograd": "#e377c2",
    "Inductor: forward": "#d62728",
    "Inductor: backward": "#ff9896",
    "C++ compilers": "#b15928",
    "publish": "#1f77b4",
}
OTHER = "#e0e0e0"
Section = tuple[str, float, float]  # name, seconds since the start of the picture, duration in seconds

WIDTH, LEFT, ROW, BAR = 1100, 210, 30, 20
COLUMNS, LEGEND_ROW = 4, 18
MAX_TICKS = 12


@dataclass(frozen=True)
class Bar:
    """One bar. ``mark`` is the position, in seconds, of a line across the bar, or None."""

    title: str
    sections: Sequence[Section]
    mark: float | None = None


def in_order(parts: Iterable[tuple[str, float]], begin: float = 0.0) -> list[Section]:
    """Sections in sequence, from names and seconds. Parts without duration are left out."""
    found: list[Section] = []
    for name, seconds in parts:
        if seconds > 0:
            found.append((name, begin, seconds))
            begin += seconds
    return found


def svg(title: str, bars: Sequence[Bar], axis: str) -> str:
    """The picture. ``axis`` describes the moment from which the seconds count."""
    end = max([at + seconds for bar in bars for _, at, seconds in bar.sections], default=1.0) or 1.0
    used = list(dict.fromkeys(name for bar in bars for name, _, _ in bar.sections))
    names = [name for name in COLOURS if name in used] + [name for name in used if name not in COLOURS]
    top, legend = 40, -(-len(names) // COLUMNS) * LEGEND_ROW
    foot = top + len(bars) * ROW
    height = foot + 52 + legend
    scale = (WIDTH - LEFT - 20) / end
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" font-size="12" '
        f'font-family="system-ui, sans-serif"><title>{escape(title)}</title>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="22" text-anchor="middle" font-size="15">{escape(title)}</text>',
    ]
    for tick in _ticks(end):
        x = LEFT + tick * scale
        parts.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{foot}" stroke="#eeeeee"/>')
        parts.append(f'<text x="{x:.1f}" y="{foot + 14}" text-anchor="middle" fill="#555555">{tick:g}</text>')
    for number, bar in enumerate(bars):
        y = top + number * ROW + (ROW - BAR) / 2
        parts.append(f'<text x="{LEFT - 8}" y="{y + 14:.1f}" text-anchor="end">{escape(bar.title)}</text>')
        for name, at, seconds in bar.sections:
            parts.append(
                f'<rect x="{LEFT + at * scale:.2f}" y="{y:.1f}" width="{seconds * scale:.2f}" height="{BAR}" '
                f'fill="{COLOURS.get(name, OTHER)}"><title>{escape(name)}: {seconds:.3f} s</title></rect>'
            )
        if bar.mark is not None:
            x = LEFT + bar.mark * scale
            parts.append(
                f'<line x1="{x:.1f}" y1="{y - 3:.1f}" x2="{x:.1f}" y2="{y + BAR + 3:.1f}" stroke="black" '
                'stroke-width="1.5"/>'
            )
    parts.append(f'<text x="{WIDTH / 2}" y="{foot + 32}" text-anchor="middle">{escape(axis)}</text>')
    for number, name in enumerate(names):
        x, y = 20 + (number % COLUMNS) * (WIDTH - 40) / COLUMNS, foot + 52 + (number // COLUMNS) * LEGEND_ROW
        parts.append(f'<rect x="{x:.1f}" y="{y - 10}" width="10" height="10" fill="{COLOURS.get(name, OTHER)}"/>')
        parts.append(f'<text x="{x + 15:.1f}" y="{y - 1}" font-size="11">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _ticks(end: float) -> list[float]:
    step = next(
        step
        for power in range(-6, 9)
        for step in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
        if end / step <= MAX_TICKS
    )
    return [round(number * step, 9) for number in range(int(end / step) + 1)]
