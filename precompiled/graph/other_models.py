"""Says in words how two captured graphs differ if they are graphs of different models (causes.py)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from precompiled.graph import listing

if TYPE_CHECKING:
    from precompiled.core.program_data import ProgramData

MAX_OPERATORS = 3


def describe_parameters(before: ProgramData, after: ProgramData) -> str:
    """The parameters and operations that differ: ``20 fewer parameters: self.h.*; 76 -> 30 operations``.

    "" if the parameters do not differ. Also "" if the graphs have the same number of inputs and the same operators:
    then only the names of parameters differ, or parameters are buffers in one graph.
    """
    inputs = [program["inputs"]["args"] for program in (before, after)]
    if len(inputs[0]) == len(inputs[1]) and operators(before) == operators(after):
        return ""
    numbers = [sum(bool(item.get("parameter")) for item in those) for those in inputs]
    is_other = f"{numbers[0]} -> {numbers[1]} parameters" if numbers[0] != numbers[1] else ""
    names = listing.different_parameters(before, after) or is_other
    return "; ".join(filter(None, (names, _lengths(before, after), _main_file(before, after)))) if names else ""


def describe_operations(before: ProgramData, after: ProgramData) -> str:
    """The operators that the graphs call more or less often: ``torch.sin: 1 -> 0``. "" if there are none."""
    counts = [operators(program) for program in (before, after)]
    names = [name for name in {**counts[0], **counts[1]} if counts[0][name] != counts[1][name]]
    shown = ", ".join(f"{name}: {counts[0][name]} -> {counts[1][name]}" for name in names[:MAX_OPERATORS])
    more = " and more" if len(names) > MAX_OPERATORS else ""
    parts = _lengths(before, after), f"{shown}{more}", _main_file(before, after)
    return "; ".join(filter(None, parts)) if names else ""


def operators(program: ProgramData) -> Counter[str]:
    """How often a graph calls each operator. Inputs and outputs do not count as operators."""
    return Counter(listing.operator(node) for graph in program["graph"] for node in graph if node[0] not in "po")


def _lengths(before: ProgramData, after: ProgramData) -> str:
    numbers = [sum(map(len, program["graph"])) for program in (before, after)]
    return f"{numbers[0]} -> {numbers[1]} operations" if numbers[0] != numbers[1] else ""


def _main_file(before: ProgramData, after: ProgramData) -> str:
    """A phrase with the main file of the nearest graph: the file of its outermost call.

    "" if both graphs have the same main file, or if one is unknown.
    """
    then, now = ([call.file for call in listing.calls(program)][-1:] for program in (before, after))
    return f"the nearest graph is of {then[0].rpartition('/')[2]}" if then and now and then != now else ""
