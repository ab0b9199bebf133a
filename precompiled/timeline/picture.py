"""Draws bars of sections, one below the other, as an SVG picture with a legend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

# The names are in the order in which they occur in a start. The legend has the same order. One hue per actor: grey for
# the program, purple for Dynamo, blue for precompiled, red for torch's compile in the program, green for steps, orange
# for the daemon's workers.
COLOURS = {
    "Python, and the hook": "#c8c8c8",
    "import torch": "#a8a8a8",
    "import transformers": "#8c8c8c",
    "the model": "#6f6f6f",
    "the program": "#7d7d7d",
    "import Dynamo": "#c9b3e6",
    "Dynamo: tracing and guards": "#8e63c7",
    "artifacts or package, before the call": "#bfdcf5",
    "a package instead of a trace": "#93c4ee",
    "capture, key, lookup": "#64a8e0",
    "sending the graph": "#a9d0f0",
    "waiting for the artifact": "#d4e8f8",
    "load of the artifact": "#2f7fc1",
    "AOTAutograd and Inductor, or their cache": "#d1495b",
    "compiled in process": "#d1495b",
    "Inductor, backward": "#e58b97",
    "the rest of the backend": "#a33a48",
    "the step": "#2e9e5b",
    "eager steps": "#b5e3c6",
    "compiled steps": "#2e9e5b",
    "queued": "#f3e3cf",
    "worker: starts": "#f6d3a5",
    "worker: compiles": "#f0b264",
    "AOTAutograd": "#e89a3c",
    "Inductor: forward": "#d97f16",
    "Inductor: backward": "#b9680c",
    "C++ compilers": "#8f4f08",
    "publish": "#f9e0bd",
}
# Maps a name in the legend to a shorter name for the label inside a bar.
SHORT = {
    "Dynamo: tracing and guards": "tracing",
    "waiting for the artifact": "waiting",
    "AOTAutograd and Inductor, or their cache": "compiling",
    "a package instead of a trace": "package",
    "load of the artifact": "load",
    "worker: starts": "starts",
}
_STYLE = """
.page { fill: #ffffff } .text { fill: #222222 } .soft { fill: #666666 } .grid { stroke: #e6e6e6 }
.mark { stroke: #000000 }
@media (prefers-color-scheme: dark) {
  .page { fill: #16181c } .text { fill: #e8e8e8 } .soft { fill: #a0a0a0 } .grid { stroke: #2c3036 }
  .mark { stroke: #ffffff }
}
"""
CHARACTER = 6.3  # estimated width of a character of a label
OTHER = "#e0e0e0"
Section = tuple[str, float, float]  # name, seconds since the start of the picture, duration in seconds

WIDTH, LEFT, ROW, BAR = 1100, 230, 36, 26
COLUMNS, LEGEND_ROW = 4, 18
MAX_TICKS = 12


@dataclass(frozen=True)
class Bar:
    """One bar. ``mark`` is the position, in seconds, of a line across the bar, or None."""

    title: str
    sections: Sequence[Section]
    mark: float | None = None


def in_order(parts: Iterable[tuple[str, float]], begin: float = 0.0) -> list[Section]:
    """Return sections that follow each other without gaps, from pairs of a name and seconds. Parts without duration are
    left out.
    """
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
        f'font-family="system-ui, sans-serif"><title>{escape(title)}</title><style>{_STYLE}</style>',
        f'<rect width="{WIDTH}" height="{height}" class="page"/>',
        f'<text x="{WIDTH / 2}" y="22" text-anchor="middle" font-size="15" class="text">{escape(title)}</text>',
    ]
    for tick in _ticks(end):
        x = LEFT + tick * scale
        parts.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{foot}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{foot + 14}" text-anchor="middle" class="soft">{tick:g}</text>')
    for number, bar in enumerate(bars):
        y = top + number * ROW + (ROW - BAR) / 2
        parts.append(f'<text x="{LEFT - 8}" y="{y + 17:.1f}" text-anchor="end" class="text">{escape(bar.title)}</text>')
        for name, at, seconds in bar.sections:
            x, width = LEFT + at * scale, seconds * scale
            parts.append(
                f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{BAR}" '
                f'fill="{_colour(name)}"><title>{escape(name)}: {seconds:.3f} s</title></rect>'
            )
            if label := _label(name, seconds, width):
                colour = "#ffffff" if _is_dark(_colour(name)) else "#222222"
                parts.append(
                    f'<text x="{x + width / 2:.1f}" y="{y + 17:.1f}" text-anchor="middle" font-size="11" '
                    f'fill="{colour}" pointer-events="none">{escape(label)}</text>'
                )
        if bar.mark is not None:
            x = LEFT + bar.mark * scale
            parts.append(
                f'<line x1="{x:.1f}" y1="{y - 4:.1f}" x2="{x:.1f}" y2="{y + BAR + 4:.1f}" class="mark" '
                'stroke-width="2"/>'
            )
    parts.append(f'<text x="{WIDTH / 2}" y="{foot + 32}" text-anchor="middle" class="soft">{escape(axis)}</text>')
    for number, name in enumerate(names):
        x, y = 20 + (number % COLUMNS) * (WIDTH - 40) / COLUMNS, foot + 52 + (number // COLUMNS) * LEGEND_ROW
        parts.append(f'<rect x="{x:.1f}" y="{y - 10}" width="10" height="10" fill="{_colour(name)}"/>')
        parts.append(f'<text x="{x + 15:.1f}" y="{y - 1}" font-size="11" class="text">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _label(name: str, seconds: float, width: float) -> str:
    """The text inside a section, if the section is wide enough: its name and seconds, or only its seconds."""
    number = f"{seconds:.1f} s"
    short = SHORT.get(name, name.removeprefix("compiled in process: "))
    texts = (f"{short} {number}", number)
    return next((text for text in texts if len(text) * CHARACTER < width - 6), "")


def _colour(name: str) -> str:
    """A section's colour. All compiles in process have the same colour, whatever their reasons are."""
    return COLOURS.get(name) or COLOURS.get(name.partition(":")[0], OTHER)


def _is_dark(colour: str) -> bool:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 150


def _ticks(end: float) -> list[float]:
    step = next(
        step
        for power in range(-6, 9)
        for step in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
        if end / step <= MAX_TICKS
    )
    return [round(number * step, 9) for number in range(int(end / step) + 1)]
