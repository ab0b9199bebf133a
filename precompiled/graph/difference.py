"""Lists the differences between two captured graphs: the values before and after, never their hashes.

This file takes two captured graphs as plain data (capture.py) and returns changes. The command line uses this file, so
the file imports no torch. Values are compared as JSON text, as in the key, so 1, 1.0 and True differ.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from precompiled.graph import listing
from precompiled.graph.key import SECTIONS
from precompiled.graph.mode_names import PARTS, SET_BY

if TYPE_CHECKING:
    from precompiled.core.program_data import InputData, ProgramData

NOT_SET = "not set"
RANGE = "range of the size"
NONE = "none"
# Texts are cut to _MAX_TEXT characters. If the first difference is near the end of this length or beyond it, both texts
# start _CONTEXT characters before the difference.
_MAX_TEXT = 300
_CONTEXT = 60
_MAX_FLAGS = 12


@dataclass(frozen=True)
class Change:
    """One difference. ``source`` is its place in the program: a line of code, or the name of an input.

    ``parameter``: whether the differing input is a parameter, buffer or other tensor of a module.
    """

    section: str
    where: str
    before: str
    after: str
    field: str = ""  # the input's property that differs
    note: str = ""
    source: str = ""
    parameter: bool = False

    def __str__(self) -> str:
        field, note = self.field and f"{self.field} ", self.note and f"  ({self.note})"
        return f"{self.where}: {field}{self.before} -> {self.after}{note}"


def compare(before: ProgramData, after: ProgramData) -> list[Change]:
    """Return all differences, by section. Raises the errors of listing.py if the data is not a captured graph."""
    found: list[Change] = []
    for section in SECTIONS:
        if _text(before[section]) != _text(after[section]):
            changes = [_clipped(change) for change in _COMPARERS[section](before, after)]
            # The key hashes texts, so the order of fields changes the key.
            found += changes or [Change(section, "the order of its fields", "one", "another")]
    return found


def distance(before: ProgramData, after: ProgramData) -> tuple[int, int]:
    """The distance of two captured graphs: how many sections differ, and how many fields in these sections."""
    changes = compare(before, after)
    operations = sum(1 for _ in _differing_nodes(before["graph"], after["graph"]))
    fields = sum(change.section != "graph" for change in changes) + operations
    return len({change.section for change in changes}), fields


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


# ---------------------------------------------------------------- graph


def _graph(before: ProgramData, after: ProgramData) -> Iterator[Change]:
    left, right = before["graph"], after["graph"]
    counts = [sum(map(len, graphs)) for graphs in (left, right)]
    if counts[0] != counts[1]:
        yield Change("graph", "number of operations", str(counts[0]), str(counts[1]), note=_operators(left, right))
    if len(left) != len(right):
        yield Change("graph", "number of graphs inside of operators", str(len(left) - 1), str(len(right) - 1))
    differing = list(_differing_nodes(left, right))
    if not differing:
        return
    graph, node = differing[0]
    texts = []
    for graphs in (left, right):
        there = graph < len(graphs) and node < len(graphs[graph])
        texts.append(listing.operation(graphs[graph][node]) if there else NONE)
    note = f"the first of {len(differing)} that differ" if len(differing) > 1 else ""
    if texts[0] == texts[1]:
        # The name of a custom operator contains a digest of its module's sources.
        note = "; ".join(filter(None, ("the same operator, whose sources have changed", note)))
    where = f"operation %{node}" + (f" of graph {graph}" if graph else "")
    yield Change("graph", where, texts[0], texts[1], note=note, source=_line(before, after, graph, node))


def _line(before: ProgramData, after: ProgramData, graph: int, node: int) -> str:
    """Return the source line of an operation, and the other graph's line at this position if it differs."""
    now, then = listing.place(after, graph, node), listing.place(before, graph, node)
    if now is None:
        return "" if then is None else f"in the other graph: {then}"
    if then is None or then.code == now.code:
        return str(now)
    return f"{now}  (in the other graph: {then.code or then})"


def first_differing(before: ProgramData, after: ProgramData) -> tuple[int, int] | None:
    """The place of the first operation that differs (the graph's index, and the position in the graph), or None."""
    return next(_differing_nodes(before["graph"], after["graph"]), None)


def _differing_nodes(left: list[list[list[Any]]], right: list[list[list[Any]]]) -> Iterator[tuple[int, int]]:
    for number in range(max(len(left), len(right))):
        graphs = [graphs[number] if number < len(graphs) else [] for graphs in (left, right)]
        for position, (one, other) in enumerate(zip_longest(*graphs)):
            if _text(one) != _text(other):
                yield number, position


def _operators(left: list[list[list[Any]]], right: list[list[list[Any]]]) -> str:
    """List the operators whose numbers of calls differ."""
    counts = [Counter(listing.operator(node) for graph in graphs for node in graph) for graphs in (left, right)]
    names = [name for name in {**counts[0], **counts[1]} if counts[0][name] != counts[1][name]]
    shown = [f"{name}: {counts[0][name]} -> {counts[1][name]}" for name in names[:5]]
    return ", ".join(shown + ["..."] * (len(names) > 5))


# ---------------------------------------------------------------- inputs

_FIELDS = {
    "stride": "strides",
    "offset": "storage offset",
    "storage": "bytes of storage",
    "shares": "shares memory with input",
    "leaf": "is a leaf",
    "inference": "is an inference tensor",
    "parameter": "is a parameter",
    "float": "is read as a number",
}


def _inputs(before: ProgramData, after: ProgramData) -> Iterator[Change]:
    left, right = before["inputs"], after["inputs"]
    if len(left["args"]) != len(right["args"]):
        yield Change("inputs", "number of inputs", str(len(left["args"])), str(len(right["args"])))
    for one, other in _paired(before, after):
        program, position = (before, one) if other is None else (after, other)
        old = None if one is None else left["args"][one]
        new = None if other is None else right["args"][other]
        one_of = new or old or {}
        # Dynamo flags tensors that are attributes of a module. It never makes the sizes of these inputs dynamic.
        parameter = bool(one_of.get("parameter") or one_of.get("flags"))
        for field, was, now in _input_fields(old, new):
            if field == _FIELDS["shares"] and str(position) in (was, now):
                continue  # the first of the inputs that share memory names itself
            name = listing.input_name(program, position)
            yield Change("inputs", f"input {position}", was, now, field=field, source=name, parameter=parameter)
    for number, (bounds, other_bounds) in enumerate(zip_longest(left["ranges"], right["ranges"])):
        if bounds != other_bounds:
            name = listing.symbols(after).get(f"s{number}", "")
            yield Change("inputs", f"{RANGE} s{number}", _range(bounds), _range(other_bounds), source=name)
    unbacked = zip_longest(left.get("unbacked", []), right.get("unbacked", []))
    for number, (size, other_size) in enumerate(unbacked):
        if size != other_size:
            yield Change("inputs", f"the unbacked size u{number}", _unbacked(size), _unbacked(other_size))
    meshes: Any = zip_longest(left.get("meshes", []), right.get("meshes", []), fillvalue={})
    for number, (one_mesh, other_mesh) in enumerate(meshes):
        yield from _of_ranks(f"mesh {number}", one_mesh, other_mesh)
    states = left.get("dtensors", {}), right.get("dtensors", {})
    yield from _of_ranks("DTensors", *states)


_MESH_FIELDS = {"rank": "this rank", "names": "names of dimensions", "groups": "groups of dimensions"}


def _of_ranks(place: str, was: Mapping[str, object], now: Mapping[str, object]) -> Iterator[Change]:
    for name in {**was, **now}:
        before, after = (str(values[name]) if name in values else NONE for values in (was, now))
        if before != after:
            yield Change("inputs", place, before, after, field=_MESH_FIELDS.get(name, name))


def _paired(before: ProgramData, after: ProgramData) -> Iterator[tuple[Any, Any]]:
    """For each input that differs, yield its positions before and after. None stands for an input that one side lacks.

    If the numbers of inputs differ, inputs with the same name are a pair.
    """
    left, right = before["inputs"]["args"], after["inputs"]["args"]
    texts = [_text(item) for item in left], [_text(item) for item in right]
    if len(left) == len(right):
        yield from ((at, at) for at, (one, other) in enumerate(zip(*texts, strict=True)) if one != other)
        return
    then, now = _positions(before), _positions(after)
    if then and now:
        yield from ((then[name], now.get(name)) for name in then if name not in now)
        pairs = ((then.get(name), at) for name, at in now.items())
        yield from ((one, at) for one, at in pairs if one is None or texts[0][one] != texts[1][at])
        return
    for _tag, start, stop, begin, end in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        if _tag != "equal":
            yield from zip_longest(range(start, stop), range(begin, end))


def _positions(program: ProgramData) -> dict[str, int]:
    """Map the names of a program's inputs to their positions.

    Empty if an input has no name, or the name of another input.
    """
    names = [listing.input_name(program, at) for at in range(len(program["inputs"]["args"]))]
    found = {name: at for at, name in enumerate(names)}
    return found if len(found) == len(names) and "" not in found else {}


def _input_fields(old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    if old is None or new is None or _kind(old) != _kind(new):
        yield "", NONE if old is None else listing.tensor(old), NONE if new is None else listing.tensor(new)
        return
    names = dict.fromkeys((*old, *new))
    if "shape" in names and _text([old["shape"], old.get("dtype")]) != _text([new["shape"], new.get("dtype")]):
        # A stride or storage that follows from a changed shape or dtype is not listed.
        if all(listing.is_contiguous(item["shape"], item["stride"]) for item in (old, new)):
            names.pop("stride")
        if "storage" in names and all(map(listing.fills_its_storage, (old, new))):
            names.pop("storage")
    for name in names:
        was, now = old.get(name), new.get(name)
        if _text(was) == _text(now):
            continue
        if name == "inner":
            for (label, one), (_, other) in zip(was, now, strict=False):
                yield from ((f"{label}'s {field}", x, y) for field, x, y in _input_fields(one, other))
        elif name in ("subclass", "opaque"):
            x, y = ".".join(was[:2]), ".".join(now[:2])
            yield "type" if x != y else "sources of", x, y
        else:
            yield (_FIELDS.get(name, name), _input_value(name, was), _input_value(name, now))


def _kind(item: InputData) -> str:
    return next((name for name in ("size", "opaque", "mesh", "subclass") if name in item), "tensor")


def _input_value(name: str, value: Any) -> str:
    if value is None:
        return "no" if name in ("shares", "float") else NOT_SET
    if name in ("shape", "stride"):
        return listing.sizes(value)
    if name in ("offset", "storage", "size"):
        return listing.size(value)
    if name == "float":
        return "yes"
    if name == "context" and "placements" in value:
        return ", ".join(map(listing.placement, value["placements"]))
    if name == "context":
        return listing.argument(value)
    return value if isinstance(value, str) else str(value)


def _unbacked(described: list[Any] | None) -> str:
    if described is None:
        return "none"
    is_size, hint = described
    return ("a size" if is_size else "any number") + ("" if hint is None else f", taken for {hint}")


def _range(bounds: list[int | None] | None) -> str:
    if bounds is None:
        return NONE
    lower, upper = ("any" if bound is None else str(bound) for bound in bounds)
    return f"{lower} to {upper}"


# ---------------------------------------------------------------- modes


def _modes(before: ProgramData, after: ProgramData) -> Iterator[Change]:
    left, right = (_flat_modes(program["modes"]) for program in (before, after))
    for name, was, now in _fields(left, right):
        mode = name.partition(".")[0]
        absent = "off" if mode == "autocast" else NOT_SET
        then, here = (absent if value is _MISSING or value is None else str(value) for value in (was, now))
        yield Change("modes", name, then, here, note=SET_BY.get(mode, ""))


def _flat_modes(modes: Mapping[str, object]) -> dict[str, object]:
    flat = {}
    for name, value in modes.items():
        parts = PARTS.get(name, ())
        if isinstance(value, list) and len(value) == len(parts):
            flat.update({f"{name}.{part}": item for part, item in zip(parts, value, strict=True)})
        elif isinstance(value, dict):
            flat.update({f"{name}.{part}": item for part, item in value.items()})
        else:
            flat[name] = value
    return flat


# ---------------------------------------------------------------- configs


def _configs(before: ProgramData, after: ProgramData) -> Iterator[Change]:
    left, right = before["configs"], after["configs"]
    for group in dict.fromkeys((*left, *right)):
        for name, was, now in _fields(left.get(group, {}), right.get(group, {})):
            where = "torch.compiler.config.cache_key_tag" if group == "tag" else f"{group}.{name}"
            yield Change("configs", where, _setting(was), _setting(now))


def _setting(value: Any) -> str:
    """Show a value of torch_internals/graph/compiler_config.py, where tuples, sets, dicts and dtypes are tagged."""
    if value is _MISSING:
        return NOT_SET
    if isinstance(value, list):
        return f"[{', '.join(map(_setting, value))}]"
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        if kind == "dtype":
            return f"torch.{content}"
        if kind == "dict":
            return "{" + ", ".join(f"{name!r}: {_setting(item)}" for name, item in content.items()) + "}"
        items = ", ".join(map(_setting, content))
        return f"({items})" if kind == "tuple" else "{" + items + "}"
    return repr(value)


# ---------------------------------------------------------------- environment


def _environment(before: ProgramData, after: ProgramData) -> Iterator[Change]:
    left, right = before["environment"], after["environment"]
    for name, was, now in _fields(left, right):
        if name == "variables":
            for variable, old, new in _fields({} if was is _MISSING else was, {} if now is _MISSING else now):
                yield Change("environment", f"variable {variable}", _setting(old), _setting(new))
            continue
        shown = [_fact(name, value) for value in (was, now)]
        if shown[0] == shown[1]:
            shown = [str(value) for value in (was, now)]
        note = _flags(before, after) if name == "cpu" else ""
        yield Change("environment", name, shown[0], shown[1], note=note)


def _flags(before: ProgramData, after: ProgramData) -> str:
    """Show the instruction sets that only one of two CPUs has."""
    then, now = listing.cpu_flags(before), listing.cpu_flags(after)
    if not then or not now:
        return "the instruction sets differ: see flags in /proc/cpuinfo"
    parts = [
        f"{which}: {', '.join(sorted(flags)[:_MAX_FLAGS])}{' and more' * (len(flags) > _MAX_FLAGS)}"
        for which, flags in (("only then", then - now), ("only now", now - then))
        if flags
    ]
    return f"instruction sets {'; '.join(parts)}" if parts else "torch uses others of them (ATEN_CPU_CAPABILITY)"


def _fact(name: str, value: object) -> str:
    """Show a fact from environment.py, without the digests in it.

    If two facts look equal without digests, the caller shows them complete.
    """
    if value is _MISSING or value in (None, ""):
        return NONE
    if not isinstance(value, str):
        return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if name == "cpu":
        return value.rpartition(" ")[0] or value
    if name == "torch":
        version, _, build = value.partition(" ")
        return f"{version} (git {build[:10]})" if build and "sources" not in build else value
    compiler = re.fullmatch(r"(.+) (\S+) (\d+) (\d+)", value) if name == "compiler" else None
    if compiler is not None:
        command, path, _size, written = compiler.groups()
        date = datetime.fromtimestamp(int(written), timezone.utc)
        return f"{command} ({path} of {date:%Y-%m-%d})"
    return value


# ---------------------------------------------------------------- all

_MISSING = object()

_COMPARERS: dict[str, Callable[[ProgramData, ProgramData], Iterator[Change]]] = {
    "graph": _graph,
    "inputs": _inputs,
    "modes": _modes,
    "configs": _configs,
    "environment": _environment,
}


def _fields(left: Mapping[str, object], right: Mapping[str, object]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the fields that differ, with their values or _MISSING."""
    for name in dict.fromkeys((*left, *right)):
        was, now = left.get(name, _MISSING), right.get(name, _MISSING)
        if was is _MISSING or now is _MISSING or _text(was) != _text(now):
            yield name, was, now


def _clipped(change: Change) -> Change:
    """Cut long values of a change around the first place where they differ."""
    before, after = change.before, change.after
    if max(len(before), len(after)) <= _MAX_TEXT:
        return change
    at = next(
        (at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other),
        min(len(before), len(after)),
    )
    start = max(0, at - _CONTEXT) if at > _MAX_TEXT - _CONTEXT else 0
    cut = [_cut(text, start) for text in (before, after)]
    return replace(change, before=cut[0], after=cut[1])


def _cut(text: str, start: int) -> str:
    return ("..." if start else "") + text[start : start + _MAX_TEXT] + ("..." if start + _MAX_TEXT < len(text) else "")
