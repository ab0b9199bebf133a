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
        """One cell per head. Columns with numbers are right-aligned."""
        raise NotImplementedError

    def note(self, report: _Report) -> str:
        """The line below the report's row; "" if none."""
        raise NotImplementedError

    def __repr__(self) -> str:
        if not self:
            return self.empty
        rows = [self.cells(report) for report in self]
        columns = list(zip(self.heads, *rows, strict=True))
        sides = [">" if any(isinstance(cell, int) for cell in column) else "<" for column in columns]
        formats = [
            f"{side}{max(len(str(cell)) for cell in column)}" for side, column in zip(sides, columns, strict=True)
        ]
        lines = [_line(self.heads, formats)]
        for report, row in zip(self, rows, strict=True):
            lines.append(_line(row, formats))
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


def _line(cells: tuple[object, ...], formats: list[str]) -> str:
    return "  ".join(f"{cell!s:{how}}" for cell, how in zip(cells, formats, strict=True)).rstrip()


class GraphReports(ReportTable["GraphReport"]):
    """The result of ``precompiled.report()``."""

    heads = ("GRAPH", "STATE", "SOURCE", "EAGER CALLS", "COMPILED CALLS", "KEY")
    empty = "no graph: the program has called no compiled function, or precompiled is off"

    def cells(self, report: GraphReport) -> tuple[object, ...]:
        calls = (report.calls_eager, report.calls_compiled) if report.calls_are_counted else ("-", "-")
        return report.name, report.state, report.source or "-", *calls, report.key[:12] or "-"

    def note(self, report: GraphReport) -> str:
        return report.why
