"""Finds the piece of a function that a graph is. Dynamo splits a function at each graph break (causes.py)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from precompiled.graph import listing

if TYPE_CHECKING:
    from precompiled.core.program_data import ProgramData

_RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")  # the name of the function that Dynamo makes for a piece


class Piece(NamedTuple):
    """The piece of a function after a graph break."""

    function: str
    file: str
    line: int  # of the graph break
    code: str  # the text of this line; "" if unknown

    def __str__(self) -> str:
        file = self.file.rpartition("/")[2]
        return f"the piece of {self.function} after the graph break at {file}:{self.line}"


def find_piece(program: ProgramData) -> Piece | None:
    """The piece that a graph is. None for the graph before the first graph break, and if the lines are unknown."""
    for place in _lines(program):
        if found := _RESUME.fullmatch(place.function):
            line, call = int(found[2]), next(iter(listing.calls(program)), None)
            code = call.code if call is not None and (call.file, call.line) == (place.file, line) else ""
            return Piece(found[1], place.file, line, code)
    return None


def are_other_pieces(program: ProgramData, other: ProgramData) -> bool:
    """Whether two graphs are pieces of one function that begin at different places.

    An edit can move a graph break to another line, so graph breaks at lines with the same text count as equal.
    """
    one, two = find_piece(program), find_piece(other)
    if one is None or two is None:
        piece, whole = (two, program) if one is None else (one, other)
        return piece is not None and any(
            (place.file, place.function) == (piece.file, piece.function) for place in _lines(whole)
        )
    is_same_place = one.line == two.line or (one.code == two.code != "")
    return (one.file, one.function) == (two.file, two.function) and not is_same_place


def describe_ends(before: ProgramData, after: ProgramData) -> str:
    """Say at which lines two graphs end, if the lines of one are the first lines of the other.

    A graph break may then have ended the shorter graph. "" if the lines differ otherwise, or are equal.
    """
    lines, others = (list(dict.fromkeys(_lines(program))) for program in (after, before))
    shorter = min(len(lines), len(others))
    if not shorter or len(lines) == len(others) or lines[:shorter] != others[:shorter]:
        return ""
    return f"this graph ends at {lines[-1].short}, the nearest one at {others[-1].short}"


def _lines(program: ProgramData) -> list[listing.Place]:
    return [operation.place for operation in listing.operations(program) if operation.place is not None]
