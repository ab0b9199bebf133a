"""Makes lists of reports print as tables, at a prompt and in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    from precompiled.client.ledger import GraphReport

_Report = TypeVar("_Report")


class ReportTable(list[_Report]):
    """A list of reports whose ``repr()`` is a table. IPython shows the list as an HTML table."""

    heads: ClassVar[tuple[str, ...]]
    empty: ClassVar[str]

    def cells(self, report: _Report) -> tuple[object, ...]:
        """One cell per head. Numbers are right-aligned."""
        raise NotImplementedError

    def note(self, report: _Report) -> str:
        """The line below the report's row; "" if none."""
        raise NotImplementedError

    def __repr__(self) -> str:
        if not self:
            return self.empty
        rows = [self.cells(report) for report in self]
        widths = [max(len(str(cell)) for cell in column) for column in zip(self.heads, *rows, strict=True)]
        lines = [_line(self.heads, rows[0], widths)]
        for report, row in zip(self, rows, strict=True):
            lines.append(_line(row, row, widths))
            if note := self.note(report):
                lines.append(f"  {note}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if not self:
            return escape(self.empty)
        head = "".join(f"<th>{escape(name.lower())}</th>" for name in (*self.heads, ""))
        rows = ((*map(str, self.cells(report)), self.note(report)) for report in self)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<table><tr>{head}</tr>{body}</table>"


def _line(texts: tuple[object, ...], row: tuple[object, ...], widths: list[int]) -> str:
    cells = zip(texts, row, widths, strict=True)
    return "  ".join(f"{text!s:{'>' if isinstance(cell, int) else '<'}{width}}" for text, cell, width in cells).rstrip()


class GraphReports(ReportTable["GraphReport"]):
    """The result of ``precompiled.report()``."""

    heads = ("GRAPH", "STATE", "SOURCE", "EAGER CALLS", "COMPILED CALLS", "KEY")
    empty = "no graph: the program has called no compiled function, or precompiled is off"

    def cells(self, report: GraphReport) -> tuple[object, ...]:
        calls = report.calls_eager, report.calls_compiled
        return report.name, report.state, report.source or "-", *calls, report.key[:12] or "-"

    def note(self, report: GraphReport) -> str:
        return report.why
