"""Draws the activity of processes as rows over a time axis, readable without colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.text import Text

# (mark, colour, meaning), in the order of the legend
STARTING = ("·", "bright_black", "Python starts, imports, builds the model")
TRACING = ("╌", "cyan", "Dynamo traces")
WAITING = ("░", "bold red", "waits for a compile, or a load")
EAGER = ("│", "yellow", "a training step, eager")
PIECES = ("╏", "green", "a training step, compiled in pieces: one compiled layer serves all equal layers")
COMPILED = ("┃", "bold green", "a training step, compiled as a whole")
STEPS = {"eager": EAGER, "pieces": PIECES, "compiled": COMPILED}
KINDS = (STARTING, TRACING, WAITING, EAGER, PIECES, COMPILED)
Kind = tuple[str, str, str]


@dataclass
class Row:
    """One process. Times are seconds since its launch."""

    label: str
    spans: list[tuple[float, float, Kind]] = field(default_factory=list)
    ticks: list[tuple[float, Kind]] = field(default_factory=list)  # ends of steps

    def end(self) -> float:
        return max([end for _, end, _ in self.spans] + [at for at, _ in self.ticks], default=0.0)


def draw(rows: Sequence[Row], width: int) -> Text:
    """Draw the rows with an axis and a legend, in ``width`` columns."""
    margin = max(len(row.label) for row in rows) + 1
    columns = max(width - margin - 1, 20)
    seconds = max(*(row.end() for row in rows), 10.0)
    text = Text()
    for row in rows:
        text.append(row.label.ljust(margin))
        for mark, style in _cells(row, columns, seconds):
            text.append(mark, style)
        text.append("\n")
    text.append(" " * margin + _axis(columns, seconds) + "\n", "bright_black")
    for mark, style, meaning in KINDS:
        text.append(f"{' ' * margin}{mark * 3} ", style)
        text.append(f"{meaning}\n", "bright_black")
    return text


def _cells(row: Row, columns: int, seconds: float) -> list[tuple[str, str]]:
    cells = [(" ", "")] * columns

    def column(at: float) -> int:
        return min(int(at / seconds * columns), columns - 1)

    for start, end, (mark, style, _) in row.spans:
        for cell in range(column(start), column(end) + 1):
            cells[cell] = (mark, style)
    # Draw steps last, so that nothing hides them.
    for at, (mark, style, _) in row.ticks:
        cells[column(at)] = (mark, style)
    return cells


def _axis(columns: int, seconds: float) -> str:
    """Return the axis: labels in seconds, at least ten columns apart."""
    step = next(step for step in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 3600) if step * columns / seconds >= 10)
    axis = [" "] * columns
    for second in range(0, int(seconds) + 1, step):
        cell = int(second / seconds * columns)
        label = f"╵{second} s"
        if cell + len(label) <= columns:
            axis[cell : cell + len(label)] = label
    return "".join(axis).rstrip()
