"""Explains a cache miss: what changed in the user's program, where, and what the user can do.

This file takes two captured graphs as plain data (capture.py) and their differences (difference.py), and returns
causes. A difference that follows from another difference is not a cause. For example, a changed size also changes
constants of the graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from precompiled.core.names import shorten_paths
from precompiled.core.words import format_count, format_list
from precompiled.graph import difference, listing, other_models, pieces
from precompiled.graph.advice import Cause
from precompiled.graph.difference import Change
from precompiled.graph.mode_names import FOLLOWS

if TYPE_CHECKING:
    from precompiled.core.program_data import ProgramData

# Two graphs count as versions of one graph if they share at least this fraction of their operators. The first number
# applies to graphs with equal names, the second to graphs with different names or of different programs.
_ALIKE, _ALIKE_BY_ANOTHER_NAME = 0.6, 0.9

MAX_NAMED = 3  # edited files

_SYMBOL = re.compile(r"\b[su]\d+")
_FLAG = re.compile(r"\b(True|False)\b")
_SMALL = {"0", "1"}
_SHORT = {
    "size": "new size",
    "small": "new size",
    "parameter": "new size of the model",
    "range": "new range of a size",
    "dtype": "new dtype",
}
# Kinds of causes that compare the inputs of one model. If the models differ, these causes are not named.
_SIZES = ("size", "small", "dynamic", "number", "range", "parameter", "input")


def new(program: ProgramData, nearest: ProgramData | None = None) -> Cause:
    """The cause for a graph that is compiled for the first time.

    ``nearest`` is the most similar program in the store.
    """
    first = next((operation.place for operation in listing.operations(program) if operation.place), None)
    is_other = nearest is not None and are_of_other_files(program, nearest)
    what = "the store had no graph of its file" if is_other else "the store had no similar graph"
    if nearest is not None and is_other and _in_common(program, nearest) >= _ALIKE_BY_ANOTHER_NAME:
        what += f"; the nearest graph is of {_lines(nearest)[-1].file.rpartition('/')[2]}"
    elif piece := pieces.find_piece(program):
        what += f"; this one is {piece}"
    return Cause("new", "new graph", what, str(first or ""))


def are_of_other_files(program: ProgramData, other: ProgramData) -> bool:
    """Whether two graphs come from different files, and so are not versions of one graph.

    The cells of notebooks count as one file, because IPython derives the name of a cell's file from the cell's text.
    """
    files, others = _with_cells_as_one(_files(program)), _with_cells_as_one(_files(other))
    return bool(files and others) and not files & others


def are_of_other_programs(program: ProgramData, other: ProgramData) -> bool:
    """Whether the call stacks of two graphs have no file in common. False if a call stack is unknown."""
    files, others = (
        _with_cells_as_one(shorten_paths(call.file) for call in listing.calls(found)) for found in (program, other)
    )
    return bool(files and others) and not files & others


def is_version_of(name: str, program: ProgramData, other_name: str, other: ProgramData) -> bool:
    """Whether two graphs are versions of one graph.

    ``name`` is like ``forward [0/1]`` (torch_internals/graph/graph_names.py).
    """
    (function, _, numbers), (other_function, _, other_numbers) = name.partition(" ["), other_name.partition(" [")
    if are_of_other_files(program, other):
        return False
    share = _in_common(program, other)
    if pieces.are_other_pieces(program, other):
        return share >= _ALIKE_BY_ANOTHER_NAME
    if are_of_other_programs(program, other):  # such as two scripts that run one model
        has_common_file = bool(_files(program) & _files(other))
        return function == other_function and has_common_file and share >= _ALIKE_BY_ANOTHER_NAME
    if function != other_function:
        return share >= _ALIKE_BY_ANOTHER_NAME
    same_frame = numbers.partition("/")[0] == other_numbers.partition("/")[0] and _files(program) & _files(other)
    return bool(same_frame) or share >= _ALIKE


def causes(before: ProgramData, after: ProgramData, changes: Sequence[Change]) -> list[Cause]:
    """The causes of a miss. Causes in the graph come first, then a different model, then all other causes.

    ``changes``: the differences to the nearest graph, from ``compare``.
    """
    by_section: dict[str, list[Change]] = {}
    for change in changes:
        by_section.setdefault(change.section, []).append(change)
    called = next(iter(listing.calls(after)), None)
    at = f"called at {called}" if called else ""
    found = [*_environment(by_section.get("environment", []), after), *_configs(by_section.get("configs", []), after)]
    # Torch reads environment variables into settings, so a changed variable explains changed settings.
    if any(cause.kind == "variable" for cause in found):
        found = [cause for cause in found if cause.kind != "setting"]
    found += _modes(by_section.get("modes", []), at)
    of_graph = list(_graph(before, after, bool(by_section.get("graph"))))
    is_edited = any(cause.kind == "edit" for cause in of_graph)
    of_inputs = list(_inputs(by_section.get("inputs", []), at, is_alone=not found, is_edited=is_edited))
    of_inputs = _of_another_model(before, after, of_inputs, at, is_edited=is_edited)
    is_other_way = any(cause.kind == "way" for cause in of_graph)
    counts_inputs = any(change.where == "number of inputs" for change in by_section.get("inputs", []))
    if is_other_way and counts_inputs and all(cause.kind == "input" for cause in of_inputs):
        of_inputs = []  # other lines use other inputs
    found = sorted([*found, *of_inputs], key=lambda cause: cause.kind != "model")  # another model comes first
    if of_inputs:  # changed sizes or dtypes change constants of the graph, which are not causes
        of_graph = [cause for cause in of_graph if cause.kind in ("operator", "edit")]
    unplaced = _unplaced(before, after, bool(by_section.get("graph")))
    return [*of_graph, *found] or [*unplaced] or [Cause("input", "other", "; ".join(map(str, changes)), at)]


def may_follow_from_a_value(cause: Cause) -> bool:
    return cause.kind in ("input", "model", "operation", "operations", "way")


def by_guard(found: Sequence[Cause], where: str, before: str, after: str, place: str) -> list[Cause]:
    """Replace causes that may follow from a value of the program (its number of layers, say) by one of kind "guard".

    Other causes stay.
    """
    more = [cause.what for cause in found if cause.kind in ("model", "operations")]
    kind = "any" if after.startswith("any ") else "guard"
    named = Cause(kind, f"other value of {where}", "; ".join([f"{before} -> {after}", *more]), place)
    return [*(cause for cause in found if not may_follow_from_a_value(cause)), named]


def by_edit(found: Sequence[Cause], edited: Sequence[str]) -> list[Cause]:
    """If a different branch ran and its file was edited, report an edit.

    Add the names of the edited files to causes that may follow from an edit. ``edited``: files that differ from the
    previous run.
    """
    return [_with_edit(cause, edited) for cause in found] if edited else list(found)


def _with_edit(cause: Cause, edited: Sequence[str]) -> Cause:
    if cause.kind == "way" and cause.new_line is not None and cause.new_line.file in edited:
        return _edit(cause.new_line, cause.old_line, cause.new_line)
    if cause.kind in ("value", "flag", "guard", "any", "way"):
        files = format_list([file.rpartition("/")[2] for file in edited[:MAX_NAMED]])
        return replace(
            cause, what=f"{cause.what} (this may follow from an edit: {files} differs from the previous run)"
        )
    return cause


def _environment(changes: Sequence[Change], after: ProgramData) -> Iterator[Cause]:
    for change in changes:
        what = f"{change.before} -> {change.after}"
        if change.where.startswith("variable "):
            by_program = listing.set_by(after, change.where) == "program"
            who = "set by the program" if by_program else "since the start of the process"
            yield Cause("variable", change.where, f"{what} ({who})", set_by=change.where.partition(" ")[2])
        elif change.where == "cpu":
            yield Cause("cpu", "another CPU", f"{what}  ({change.note})")
        elif change.where == "compiler":
            yield Cause("compiler", "another C++ compiler", what)
        else:
            yield Cause("version", f"another {change.where}", what)


def _configs(changes: Sequence[Change], after: ProgramData) -> Iterator[Cause]:
    who = {"options": "by mode= or options= of torch.compile", "program": "set by the program", "": "torch's default"}
    for change in changes:
        said = who.get(listing.set_by(after, change.where), "")
        what = f"{change.before} -> {change.after}"
        yield Cause("setting", f"setting {change.where}", f"{what} ({said})" if said else what, set_by=change.where)


def _modes(changes: Sequence[Change], at: str) -> Iterator[Cause]:
    modes = {change.where.partition(".")[0] for change in changes}
    for change in changes:
        mode, _, part = change.where.partition(".")
        if FOLLOWS.get(mode) not in modes:
            name = {"grad": "grad mode", "inference": "inference mode"}.get(mode, mode.replace("_", " "))
            what = f"{change.before} -> {change.after}"
            yield Cause("mode", f"{name} ({part})" if part else name, what, at, change.where)


def _of_another_model(
    before: ProgramData, after: ProgramData, of_inputs: list[Cause], at: str, *, is_edited: bool
) -> list[Cause]:
    """The causes about the inputs.

    If the parameters, their sizes or the operations differ, one cause about the model replaces the causes about sizes:
    this model would miss even with the earlier input sizes.
    """
    others = [cause for cause in of_inputs if cause.kind not in _SIZES]
    of_model = [cause for cause in of_inputs if cause.kind == "parameter"]
    if parameters := other_models.describe_parameters(before, after):
        ends = "" if is_edited else pieces.describe_ends(before, after)
        short = "another model or graph break" if ends else "another model"
        said = "; ".join(filter(None, [parameters, ends]))
        return [Cause("model", short, _also(said, of_model), at), *others]
    sizes = of_model + [cause for cause in of_inputs if cause.kind in ("size", "small", "dynamic")]
    # An edit explains the operations. A size that became dynamic adds operations.
    may_add = is_edited or any(cause.short.startswith("size became") for cause in of_inputs)
    if sizes and not may_add and (operations := other_models.describe_operations(before, after)):
        return [Cause("operations", "other operations", _also(operations, sizes[:1]), at), *others]
    if of_model:
        return [replace(sizes[0], what=_also(sizes[0].what, sizes[1:])), *others]
    return of_inputs


def _also(what: str, sizes: Sequence[Cause]) -> str:
    return "; also ".join([what, *(cause.what for cause in sizes)])


def _inputs(changes: Sequence[Change], at: str, *, is_alone: bool, is_edited: bool) -> Iterator[Cause]:
    kinds: dict[str, list[Change]] = {}
    for change in changes:
        kinds.setdefault(_input_kind(change), []).append(change)
    if kinds.keys() & {"size", "dynamic"}:  # these may change ranges and add inputs, which are not causes
        kinds.pop("range", None)
    numbers = [change for change in changes if "an int" in (change.before[:6], change.after[:6])]
    if len(kinds) > 1 or not is_alone or is_edited:
        kinds.pop("input", None)
    for kind, those in kinds.items():
        if kind == "dynamic":
            is_size = any(change.field for change in those) or not numbers
            yield _dynamic(those, at) if is_size else _number(numbers, at)
        else:
            first = those[0]
            field = "range " if kind == "range" and first.source else f"{first.field} " if first.field else ""
            what = f"{first.source or first.where}: {field}{first.before} -> {first.after}{_and_more(those)}"
            yield Cause(kind, _SHORT.get(kind, "other input"), what, at)


def _input_kind(change: Change) -> str:
    if change.where.startswith(difference.RANGE):
        return "dynamic" if difference.NONE in (change.before, change.after) else "range"
    if change.where.startswith("the unbacked size"):
        return "size"
    if change.field.endswith("shape"):
        if change.parameter:
            return "parameter"
        if _symbols(change.before) != _symbols(change.after):
            return "dynamic"
        if _SYMBOL.sub("s", change.before) == _SYMBOL.sub("s", change.after):
            return "input"  # only the symbols' numbers have changed
        return "small" if _has_small(change) else "size"
    return "dtype" if change.field.endswith("dtype") else "input"


def _dynamic(changes: Sequence[Change], at: str) -> Cause:
    """The cause if a size became dynamic or fixed. Usually Dynamo decided this, because the size had changed."""
    shapes = [change for change in changes if change.field]
    ranges = [change for change in changes if not change.field]
    first = (shapes or ranges)[0]
    is_fixed = first.after == difference.NONE or _symbols(first.before) > _symbols(first.after)
    field = f"{first.field} " if first.field else ""
    bounds = f", for sizes from {ranges[0].after}" if shapes and ranges and not is_fixed else ""
    what = f"{first.source or first.where}: {field}{first.before} -> {first.after}{bounds}"
    short = f"size became {'fixed' if is_fixed else 'dynamic'}"
    is_small = any(after in _SMALL for change in shapes for _before, after in _sizes(change))
    is_small = is_small or (bool(shapes) and all(map(_is_small_without_symbols, shapes)))
    return Cause("small" if is_small else "dynamic", short, what + _and_more(shapes or ranges), at)


def _sizes(change: Change) -> list[tuple[str, str]]:
    """The sizes before and after of each dimension that differs."""
    before, after = (text.strip("[]").split(", ") for text in (change.before, change.after))
    return [(one, other) for one, other in zip_longest(before, after, fillvalue="") if one != other]


def _has_small(change: Change) -> bool:
    """Whether a size that differs was 0 or 1 before, or is 0 or 1 now. Torch compiles these sizes separately."""
    return any(_SMALL & set(pair) for pair in _sizes(change))


def _is_small_without_symbols(change: Change) -> bool:
    """Whether every size that became dynamic was 0 or 1 before, and every size that became fixed is 0 or 1 now.

    Torch never makes the sizes 0 and 1 dynamic.
    """
    fixed = {
        one if _SYMBOL.search(other) else other
        for one, other in _sizes(change)
        if bool(_SYMBOL.search(one)) != bool(_SYMBOL.search(other))
    }
    return bool(fixed) and fixed <= _SMALL


def _number(changes: Sequence[Change], at: str) -> Cause:
    """The cause if a number that the program passes (an int argument) became dynamic or fixed."""
    first = changes[0]
    is_fixed = first.after == difference.NONE
    what = "any number -> a constant" if is_fixed else "a constant -> any number"
    short = f"number became {'fixed' if is_fixed else 'dynamic'}"
    return Cause("number", short, f"{first.source or first.where}: {what}{_and_more(changes)}", at)


def _symbols(text: str) -> int:
    return len(_SYMBOL.findall(text))


def _and_more(changes: Sequence[Change]) -> str:
    return f", and {format_count(len(changes) - 1, 'more change')} of inputs" if len(changes) > 1 else ""


def _graph(before: ProgramData, after: ProgramData, differs: bool) -> Iterator[Cause]:
    place = difference.first_differing(before, after) if differs else None
    if place is None:
        return
    now, then = listing.place(after, *place), listing.place(before, *place)
    operations = _operations(before, after, place)
    # A different number of inputs shifts all operations.
    is_aligned = len(before["inputs"]["args"]) == len(after["inputs"]["args"])
    is_same_line = is_aligned and now is not None and then is not None and now.code == then.code
    old, new = (then, now) if is_aligned and now and then and not is_same_line else _own_lines(before, after)
    line = new or old
    if not operations:
        operator = listing.operator(after["graph"][place[0]][place[1]])
        yield Cause("operator", f"custom operator {operator}", "its sources have changed", str(now or then or ""))
    elif line is not None and _edited(before, after, old, new):
        yield _edit(line, old, new, operations)
    elif is_same_line and now is not None and now.code:
        if not _same_operator(before, after, place):
            yield Cause("operation", f"other operation at {now.short}", _in_order(operations), str(now))
        else:
            kind = "flag" if _differ_in_flags(operations) else "value"
            yield Cause(kind, f"other value at {now.short}", _in_order(operations), str(now))
    elif old is not None and new is not None and (old not in _places(after) or new not in _places(before)):
        # No line was edited, and one program skips a line of the other, so the inputs decide which line runs.
        what = f"{_code(new)} ran, where {old.short} ran before: {_code(old)}"
        yield Cause("way", f"other branch at {new.short}", what, new.where, old_line=old, new_line=new)


def _edit(
    line: listing.Place, old: listing.Place | None, new: listing.Place | None, operations: Sequence[str] = ()
) -> Cause:
    """An edit. ``line``: the new line, or the old line if none replaces it. ``operations`` are shown if the line's text
    is the same.
    """
    is_same = old is not None and new is not None and old.code == new.code
    what = _in_order(operations if is_same else (_code(old), _code(new)))
    where = line.where if new else f"before the edit {line.where}"
    return Cause("edit", f"edit at {line.short}", what, where, old_line=old, new_line=new)


def _own_lines(before: ProgramData, after: ProgramData) -> tuple[listing.Place | None, listing.Place | None]:
    """For each program, its first source line whose text does not occur in the other program."""
    one, other = _lines(before), _lines(after)
    codes = [{place.code for place in lines} for lines in (one, other)]
    return (
        next((place for place in one if place.code not in codes[1]), None),
        next((place for place in other if place.code not in codes[0]), None),
    )


def _in_order(values: Sequence[str]) -> str:
    """A value before and after, as text. "" if there is none."""
    return " -> ".join(values)


def _code(place: listing.Place | None) -> str:
    return repr(place.code) if place and place.code else difference.NONE


def _unplaced(before: ProgramData, after: ProgramData, differs: bool) -> Iterator[Cause]:
    """Yield the first operation that differs. Used if source lines explain nothing: torch's modules have no lines."""
    place = difference.first_differing(before, after) if differs else None
    if place is not None:
        line = listing.place(after, *place) or listing.place(before, *place)
        short = f"other operation at {line.short}" if line else "other operation"
        yield Cause("operation", short, _in_order(_operations(before, after, place)), str(line or ""))


def _operations(before: ProgramData, after: ProgramData, place: tuple[int, int]) -> Sequence[str]:
    """The texts of two operations. Empty if the texts are the same."""
    texts = [
        listing.operation(program["graph"][place[0]][place[1]]) if _has(program, place) else difference.NONE
        for program in (before, after)
    ]
    return texts if texts[0] != texts[1] else ()


def _lines(program: ProgramData) -> list[listing.Place]:
    """The source lines of a program's operations, in order."""
    return [operation.place for operation in listing.operations(program) if operation.place is not None]


def _edited(before: ProgramData, after: ProgramData, then: listing.Place | None, now: listing.Place | None) -> bool:
    """Whether the program was edited.

    True if a line's text has changed. Also true if a notebook cell's file name has changed, because IPython derives the
    file name from the cell's text.
    """
    if then and now and then.file != now.file and "/ipykernel_" in then.file and "/ipykernel_" in now.file:
        return then.function == now.function
    texts = [
        {(shorten_paths(place.file), place.line): place.code for place in _lines(program)}
        for program in (before, after)
    ]
    return any(texts[1].get(line, code) != code for line, code in texts[0].items())


def _places(program: ProgramData) -> set[listing.Place | None]:
    return {operation.place for operation in listing.operations(program)}


def _same_operator(before: ProgramData, after: ProgramData, place: tuple[int, int]) -> bool:
    """Whether both programs call the same operator at a place, with different arguments."""
    names = [
        listing.operator(program["graph"][place[0]][place[1]]) for program in (before, after) if _has(program, place)
    ]
    return len(names) == 2 and names[0] == names[1]


def _differ_in_flags(operations: Sequence[str]) -> bool:
    """Whether two operations differ in True and False."""
    one, other = map(_FLAG.findall, operations)
    return one != other


def _has(program: ProgramData, place: tuple[int, int]) -> bool:
    graph, node = place
    return graph < len(program["graph"]) and node < len(program["graph"][graph])


def _in_common(program: ProgramData, other: ProgramData) -> float:
    counts = [other_models.operators(found) for found in (program, other)]
    most = max(sum(count.values()) for count in counts)
    return sum((counts[0] & counts[1]).values()) / most if most else 1.0


def _files(program: ProgramData) -> set[str]:
    # Leave out the folder of installed packages, so that one library in two environments counts as one file.
    return {shorten_paths(place.file) for place in _lines(program)}


def _with_cells_as_one(files: Iterable[str]) -> set[str]:
    return {"a cell" if "/ipykernel_" in file else file for file in files}
