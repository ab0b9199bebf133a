"""Shows a captured graph in words, for `precompiled cache show` and for graph/difference.py.

This file uses plain data (graph_codec.py, input_metadata.py), because the command line imports no torch. ``%3`` is the
operation at position 3 of its graph. Data that is not a captured graph raises TypeError, ValueError, KeyError,
IndexError or AttributeError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from precompiled.core.words import format_count, format_list

if TYPE_CHECKING:
    from precompiled.core.program_data import InputData, ProgramData


# The functions of this file raise these errors for data that is not a captured graph.
NOT_A_PROGRAM = (TypeError, ValueError, KeyError, IndexError, AttributeError)

_BITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Place:
    """The place of an operation, or of a caller of the traced code (torch_internals/graph/source_lines.py)."""

    file: str
    line: int
    function: str
    code: str

    @property
    def short(self) -> str:
        """``train.py:31``, or ``line 4 of a cell`` in a notebook."""
        if "/ipykernel_" in self.file:
            return f"line {self.line} of a cell"
        return f"{self.file.rpartition('/')[2]}:{self.line}"

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}, in {self.function}"

    def __str__(self) -> str:
        return f"{self.where}: {self.code}" if self.code else self.where


@dataclass(frozen=True)
class Operation:
    """One operation. ``text`` includes its arguments.

    ``graph`` is 0 for the captured graph. The graphs inside its higher-order operators have higher numbers.
    """

    graph: int
    node: int
    text: str
    place: Place | None
    is_input: bool = False


def operations(program: ProgramData) -> list[Operation]:
    """All operations of a program, in order."""
    found = []
    for number, graph in enumerate(program["graph"]):
        placeholders = 0
        for position, node in enumerate(graph):
            text = operation(node)
            if node[0] == "p":
                text = f"{text} {placeholders}"
                if number == 0:
                    name = input_name(program, placeholders)
                    described = tensor(program["inputs"]["args"][placeholders]) + _shared(program, placeholders)
                    text += f": {described}" + (f"  {name}" if name else "")
                placeholders += 1
            if node[0] != "o":
                text = f"%{position} = {text}"
            found.append(Operation(number, position, text, place(program, number, position), node[0] == "p"))
    return found


def place(program: ProgramData, graph: int, node: int) -> Place | None:
    """The source line of a node. None if the client sent no valid line (the key does not cover lines)."""
    try:
        numbers = program["about"]["nodes"][graph]
        if len(numbers) != len(program["graph"][graph]) or numbers[node] < 0:
            return None
        file, line, function, code = program["about"]["places"][numbers[node]]
        return Place(str(file), int(line), str(function), str(code))
    except NOT_A_PROGRAM:
        return None


def calls(program: ProgramData) -> list[Place]:
    """The user's frames that led to the trace, innermost first. Empty if the client sent no frames."""
    try:
        return [
            Place(str(file), int(line), str(function), str(code))
            for file, line, function, code in program["about"]["calls"]
        ]
    except NOT_A_PROGRAM:
        return []


def set_by(program: ProgramData, what: str) -> str:
    """How a setting or variable got its value: "options", "program", or "" if unknown. ``what``: see graph/about.py."""
    try:
        return str(program["about"]["set"].get(what, ""))
    except NOT_A_PROGRAM:
        return ""


def cpu_flags(program: ProgramData) -> set[str]:
    """The CPU's instruction sets. Empty if the client sent none."""
    try:
        return set(str(program["about"]["cpu"]["flags"]).split())
    except NOT_A_PROGRAM:
        return set()


def symbols(program: ProgramData) -> dict[str, str]:
    """Map symbolic sizes to dimensions of inputs: ``s0`` to ``x, dimension 1``. Leaves out all other symbolic sizes."""
    found: dict[str, str] = {}
    for position, item in enumerate(program["inputs"]["args"]):
        name = input_name(program, position) or f"input {position}"
        for dimension, value in enumerate(item.get("shape", ())):
            if isinstance(value, dict) and list(value) == ["s"]:
                found.setdefault(size(value), f"{name}, dimension {dimension}")
    return found


def input_name(program: ProgramData, position: int) -> str:
    """The program's name of an input, or Dynamo's name if the program has none. "" if the client sent no name."""
    try:
        return str(program["about"]["inputs"][position])
    except NOT_A_PROGRAM:
        return ""


def different_parameters(before: ProgramData, after: ProgramData) -> str:
    """Say which parameters only one of two graphs has: ``12 more parameters: self.h.2.*``. "" if the names are equal or
    unknown.
    """
    names = [
        {
            input_name(program, position)
            for position, item in enumerate(program["inputs"]["args"])
            if item.get("parameter")
        }
        for program in (before, after)
    ]
    if "" in names[0] | names[1]:
        return ""
    said = [
        f"{format_count(len(found), f'{what} parameter')}: {_common_name(found)}"
        for what, found in (("more", names[1] - names[0]), ("fewer", names[0] - names[1]))
        if found
    ]
    return ", ".join(said)


def _common_name(names: set[str]) -> str:
    """The common beginning of dotted names: ``self.h.2.*``."""
    if len(names) == 1:
        return next(iter(names))
    parts = zip(*(name.split(".") for name in names), strict=False)
    common = [same[0] for same in takewhile(lambda same: len(set(same)) == 1, parts)]
    return ".".join([*common, "*"])


# ---------------------------------------------------------------- operations


def operation(node: list[Any]) -> str:
    """A node as text, without the node's own number: ``torch.add(%0, 2)``."""
    if node[0] == "p":
        return "input"
    if node[0] == "g":
        kept = f", checkpointed by {_policy(node[2])}" if len(node) > 2 else ""
        return f"graph {node[1]}{kept}"
    _code, _target, args, kwargs, *annotations = node
    shown = [argument(item) for item in args]
    before = operator(node)
    if node[0] == "m" and shown:
        before = f"{shown.pop(0)}.{before}"
    shown += [f"{name}={argument(value)}" for name, value in kwargs]
    if node[0] == "f" and node[1][0] == "kernel":
        shown += [f"{name}={argument(value)}" for name, value in node[1][4]]  # constants of the user's Triton kernel
    return f"{before}({', '.join(shown)})" + "".join(f", annotated {argument(item)}" for item in annotations)


def operator(node: list[Any]) -> str:
    """The name of the function or method that a node calls."""
    if node[0] in ("p", "g"):
        return {"p": "input", "g": "graph"}[node[0]]
    if node[0] == "o":
        return "output"
    return str(node[1]) if node[0] == "m" else target(node[1])


def target(name: list[Any]) -> str:
    """The name of a called function (torch_internals/graph/call_targets.py)."""
    kind, *rest = name
    if kind in ("fn", "local"):
        return ".".join(rest).replace("_operator.", "operator.")
    if kind == "op" and len(rest) == 2:
        return ".".join(rest)
    if kind in ("op", "cop"):
        return ".".join((rest[0], rest[1], rest[2] or "default"))
    if kind == "kernel":
        module, qualname, _digest = rest[1]
        return f"{module}.{qualname}[grid]"
    return rest[0]


def argument(value: Any) -> str:
    """An argument, as Python would write it."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(argument, value))}]"
    ((kind, content),) = value.items()
    if kind == "n":
        return f"%{content}"
    if kind == "P":
        return placement(content)
    if kind == "e":
        return "..."
    if kind == "c":
        return repr(complex(*content))
    if kind == "x":
        if content[0] == "device":
            return f"device({content[1]!r})"
        return f"tl.{content[1]}" if content[0] == "tl" else f"torch.{content[1]}"
    if kind == "d":
        return "{" + ", ".join(f"{argument(key)}: {argument(item)}" for key, item in content) + "}"
    items = [argument(item) for item in content]
    if kind == "t":
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    if kind == "s":
        start, stop, step = ("" if item == "None" else item for item in items)
        return f"{start}:{stop}" + (f":{step}" if step else "")
    name = {"r": "range", "z": "torch.Size"}[kind]
    return f"{name}({', '.join(items)})"


def placement(encoded: list[Any]) -> str:
    """A placement of a DTensor (torch_internals/ranks/dtensors.py)."""
    return f"{encoded[0]}({', '.join(map(repr, encoded[1:]))})"


def _policy(encoded: list[Any]) -> str:
    kind, content, _mutation = encoded
    return f"keeping {', '.join(map(target, content))}" if kind == "ops" else f"{content[0]}.{content[1]}"


# ---------------------------------------------------------------- inputs


def size(value: Any) -> str:
    """A size. Symbols are ``s0``, unbacked ones ``u0``."""
    if isinstance(value, int):
        return str(value)
    ((name, content),) = value.items()
    if name in ("s", "u"):
        return f"{name}{content}"
    items = [size(item) for item in content]
    if name in ("Add", "Mul"):
        return f"({(' + ' if name == 'Add' else '*').join(items)})"
    return f"{name}({', '.join(items)})"


def sizes(values: list[Any]) -> str:
    """Several sizes as text: ``[8, s0]``."""
    return f"[{', '.join(map(size, values))}]"


def tensor(item: InputData) -> str:
    """Describe an input on one line, without properties that most inputs have."""
    if "size" in item:
        return f"an int, {size(item['size'])}"
    if "opaque" in item:
        return f"an object, {'.'.join(item['opaque'][:2])}"
    if "mesh" in item:
        return f"mesh {item['mesh']}"
    if "subclass" in item and "placements" in item["context"]:
        placements = ", ".join(map(placement, item["context"]["placements"]))
        return f"{item['context']['dtype']} {sizes(item['shape'])} as {placements} on {tensor(item['inner'][1][1])}"
    if "subclass" in item:
        inner = ", ".join(f"{name}: {tensor(held)}" for name, held in item["inner"])
        return f"{'.'.join(item['subclass'][:2])} {sizes(item['shape'])} of {inner}"
    words = [f"{item['dtype']} {sizes(item['shape'])}"]
    if not is_contiguous(item["shape"], item["stride"]):
        words.append(f"strides {sizes(item['stride'])}")
    if item["device"] != "cpu":
        words.append(item["device"])
    if item["parameter"]:
        words.append("parameter")
    elif item["requires_grad"]:
        words.append("requires grad")
    return ", ".join(words)


def _shared(program: ProgramData, position: int) -> str:
    """Which other inputs share an input's memory. Inputs that share memory all have the same value of ``shares``."""
    inputs = program["inputs"]["args"]
    first = inputs[position].get("shares")
    others = [str(at) for at, item in enumerate(inputs) if first is not None and item.get("shares") == first]
    others = [at for at in others if at != str(position)]
    if not others:
        return ""
    return f", shares memory with {'input' if len(others) == 1 else 'inputs'} {format_list(others)}"


def is_contiguous(shape: list[Any], stride: list[Any]) -> bool:
    """Whether a new tensor of the shape has these strides. True if any is symbolic."""
    if not all(type(value) is int for value in (*shape, *stride)):
        return True
    expected = 1
    for length, step in zip(reversed(shape), reversed(stride), strict=True):
        if length != 1 and step != expected:
            return False
        expected *= max(length, 1)
    return True


def fills_its_storage(item: InputData) -> bool:
    """Whether a tensor's storage has exactly the size that its shape and dtype need. True if any is symbolic."""
    if not all(type(value) is int for value in (*item["shape"], item["storage"])):
        return True
    elements = 1
    for length in item["shape"]:
        elements *= length
    bits = _BITS.search(item["dtype"])
    return bool(item["storage"] == elements * (int(bits.group()) // 8 if bits else 1))
