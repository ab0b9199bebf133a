"""Cuts a graph into pieces: the operations before a run of equal layers, each layer, and the operations after the run.
If the operations before or after the run contain another run, they are cut, too.

Equal layers are one piece, which is compiled once and called once per layer. A graph is cut only between two of its
operations, in the program's order, so the pieces run in the order of the graph.

A graph is not cut

- within a region that sets a mode (autocast, grad mode), because both halves would need the mode;
- between the operation that makes an intermediate value and the last operation that changes the value in place;
- if it has symbolic sizes, tensor subclasses, inner graphs (checkpoints), or outputs other than tensors and None;
- if the cut would save the compile of fewer than WORTH operations.

Private names: torch.fx.Node.meta["example_value"], torch._subclasses.fake_tensor.FakeTensor,
torch.UntypedStorage._cdata, torch._ops.HigherOrderOperator, torch.utils._pytree.tree_leaves. Checked on 2.11.0, 2.13.0,
2.15.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from precompiled.torch_internals.graph import operation_effects
from precompiled.torch_internals.graph.graph_codec import MEANINGFUL_META

LEAST = 8  # operations of the smallest layer
WORTH = 50  # cut only if at least this many operations need no compile; each piece costs a compile and a call


@dataclass(frozen=True)
class Step:
    """One call of a piece. ``inputs`` and ``outputs`` are positions in the list of all values; the first values are
    the graph's inputs.
    """

    piece: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    last_used: tuple[int, ...]  # values that no later step and no output of the graph uses


@dataclass(frozen=True)
class Cut:
    """A graph as calls of pieces. ``returns``: for each output of the graph, its position among the values, or None if
    the output is None.
    """

    pieces: list[torch.fx.GraphModule]
    steps: list[Step]
    returns: tuple[int | None, ...]
    values: int  # the number of all values

    @property
    def share(self) -> float:
        """The number of operations of the pieces, divided by the number of operations of the graph."""
        sizes = [sum(node.op.startswith("call_") for node in piece.graph.nodes) for piece in self.pieces]
        return sum(sizes) / sum(sizes[step.piece] for step in self.steps)


def cut(module: torch.fx.GraphModule) -> Cut | None:
    """Cut a graph into pieces. Returns None if the graph has no run of equal layers, or cannot be cut."""
    nodes = [node for node in module.graph.nodes if node.op.startswith("call_")]
    returned = _returned(module)
    if returned is None or not _can_be_cut(module, nodes):
        return None
    segments = _segments(nodes, _places(nodes))
    if len(segments) < 3:
        return None
    return _assembled(module, segments, returned)


def _returned(module: torch.fx.GraphModule) -> list[torch.fx.Node | None] | None:
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    values = output.args[0]
    if not isinstance(values, (tuple, list)) or not all(
        isinstance(value, (torch.fx.Node, type(None))) for value in values
    ):
        return None
    return list(values)


def _can_be_cut(module: torch.fx.GraphModule, nodes: Sequence[torch.fx.Node]) -> bool:
    known = {"placeholder", "call_function", "call_method", "output"}
    values = [leaf for node in module.graph.nodes for leaf in pytree.tree_leaves(node.meta.get("example_value"))]
    return (
        all(node.op in known for node in module.graph.nodes)  # no inner graphs
        and not any(isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) for value in values)
        and all(type(value) in (FakeTensor, torch.nn.Parameter) for value in values if isinstance(value, torch.Tensor))
        and not any(isinstance(node.target, torch._ops.HigherOrderOperator) for node in nodes)
    )


def composed(cut: Cut, functions: Sequence[Callable[..., Any]]) -> Callable[..., tuple[object, ...]]:
    """Return a function that computes the graph's results by calls of ``functions``, one function per piece."""
    steps = [(functions[step.piece], step.inputs, step.outputs, step.last_used) for step in cut.steps]
    returns, size = cut.returns, cut.values

    def run(*args: object) -> tuple[object, ...]:
        values: list[object] = [*args, *[None] * (size - len(args))]
        for function, inputs, outputs, last_used in steps:
            results = function(*[values[at] for at in inputs])
            for at in last_used:
                values[at] = None  # frees memory; the caller may free its inputs
            for at, result in zip(outputs, results, strict=True):
                values[at] = result
        return tuple(None if at is None else values[at] for at in returns)

    return run


# ---------------------------------------------------------------- places


def _places(nodes: Sequence[torch.fx.Node]) -> set[int]:
    """The positions before which the graph may be cut."""
    made: dict[int, int] = {}  # maps a storage to the position of the first intermediate value in it
    closed: set[int] = set()
    for position, node in enumerate(nodes):
        for key in _storages(node):
            made.setdefault(key, position)
        for written in operation_effects.written_arguments(node):
            for key in _storages(written):
                # Forbid cuts between the creation of a value and its last change. For an input of the graph, the first
                # operation that returns its memory counts as the creation.
                closed.update(range(made.get(key, position) + 1, position + 1))
    entered, grad = 0, torch.is_grad_enabled()
    for position, node in enumerate(nodes):
        if entered or grad != torch.is_grad_enabled():
            closed.add(position)
        name = operation_effects.name(node)
        if name in ("_set_grad_enabled", "set_grad_enabled"):
            grad = bool(node.args[0])
        elif name in operation_effects.SET_MODES:
            entered += 1
        elif name == "_exit_autocast":
            entered -= 1
    return set(range(len(nodes) + 1)) - closed


def _storages(node: torch.fx.Node) -> Iterator[int]:
    for value in pytree.tree_leaves(node.meta.get("example_value")):
        if isinstance(value, torch.Tensor):
            yield value.untyped_storage()._cdata


# ---------------------------------------------------------------- runs of equal layers


def _segments(nodes: Sequence[torch.fx.Node], places: set[int]) -> list[tuple[int, int]]:
    """The pieces as ranges of positions, in order."""
    signatures = [_signature(node) for node in nodes]

    def split(start: int, end: int) -> list[tuple[int, int]]:
        run = _longest_run(nodes, signatures, places, start, end)
        if run is None:
            return [(start, end)] if start < end else []
        first, period, count = run
        layers = [(first + number * period, first + (number + 1) * period) for number in range(count)]
        return [*split(start, first), *layers, *split(layers[-1][1], end)]

    return split(0, len(nodes))


def _signature(node: torch.fx.Node) -> int:
    """A hash of what an operation does, and of its arguments' metadata."""
    return hash(repr((_operation(node, _metadata), _metadata(node))))


def _operation(node: torch.fx.Node, name: Callable[[torch.fx.Node], object]) -> object:
    """Describe what an operation does. ``name`` returns the description of an argument that is a node."""

    def plain(argument: object) -> object:
        return name(argument) if isinstance(argument, torch.fx.Node) else repr(argument)

    arguments = map_aggregate((node.args, dict(node.kwargs)), plain)
    return node.op, str(node.target), arguments, [node.meta.get(entry) for entry in MEANINGFUL_META]


def _metadata(node: torch.fx.Node) -> list[object]:
    values = pytree.tree_leaves(node.meta.get("example_value"))
    return [
        (value.dtype, tuple(value.shape), value.stride(), value.device, value.requires_grad)
        if isinstance(value, torch.Tensor)
        else type(value)
        for value in values
    ]


def _longest_run(
    nodes: Sequence[torch.fx.Node], signatures: Sequence[int], places: set[int], start: int, end: int
) -> tuple[int, int, int] | None:
    """Find the equal layers that save the most compiles. Returns the position of the first layer, the length of a
    layer, and the number of layers.

    If the layers can begin at several positions, returns the position at which the fewest values cross the cut.
    """
    found: list[tuple[int, int, int, int]] = []
    for period in _periods(signatures, start, end):
        position = start
        while position + period < end:
            length = 0
            while (
                position + length + period < end
                and signatures[position + length] == signatures[position + length + period]
            ):
                length += 1
            if length >= period:
                found += _rotations(nodes, places, position, period, length + period)
            position += length + 1
    found = [option for option in found if (option[1] - 1) * option[2] >= WORTH]
    if not found:
        return None
    saved = max(count * period for _, count, period, _ in found)
    # Accept one layer less if fewer values then cross the cuts.
    _, _, period, first = min(
        (crossing, -count, period, first) for crossing, count, period, first in found if (count + 1) * period >= saved
    )
    count = next(count for c, count, p, f in found if (p, f) == (period, first))
    return first, period, count


def _periods(signatures: Sequence[int], start: int, end: int) -> list[int]:
    last: dict[int, int] = {}
    periods: Counter[int] = Counter()
    for position in range(start, end):
        previous = last.get(signatures[position])
        if previous is not None and position - previous >= LEAST:
            periods[position - previous] += 1
        last[signatures[position]] = position
    return [period for period, count in periods.items() if count >= LEAST]


def _rotations(
    nodes: Sequence[torch.fx.Node], places: set[int], start: int, period: int, length: int
) -> Iterator[tuple[int, int, int, int]]:
    order = {node: position for position, node in enumerate(nodes)}
    for first in range(start, start + period):
        count = (start + length - first) // period
        if count < 2 or any(first + number * period not in places for number in range(count + 1)):
            continue
        region = range(first, first + period)
        crossing = sum(any(order.get(user, len(nodes)) not in region for user in nodes[at].users) for at in region)
        yield crossing, count, period, first


# ---------------------------------------------------------------- pieces


def _assembled(
    module: torch.fx.GraphModule, segments: Sequence[tuple[int, int]], returned: Sequence[torch.fx.Node | None]
) -> Cut:
    nodes = [node for node in module.graph.nodes if node.op.startswith("call_")]
    segment_of = {node: number for number, (start, end) in enumerate(segments) for node in nodes[start:end]}
    position_of = {node: at for at, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder")}
    given = {node for node in returned if node is not None}

    parts: list[tuple[list[torch.fx.Node], list[torch.fx.Node], list[torch.fx.Node]]] = []
    for number, (start, end) in enumerate(segments):
        own = nodes[start:end]
        inputs = list(
            dict.fromkeys(one for node in own for one in node.all_input_nodes if segment_of.get(one) != number)
        )
        outputs = [
            node for node in own if node in given or any(segment_of.get(user, number) != number for user in node.users)
        ]
        parts.append((own, inputs, outputs))
    for _, _, outputs in parts:
        for node in outputs:
            position_of[node] = len(position_of)

    pieces: list[torch.fx.GraphModule] = []
    known: dict[str, int] = {}
    steps: list[Step] = []
    used: set[int] = {position_of[node] for node in given}
    for _, inputs, outputs in reversed(parts):
        positions = tuple(position_of[node] for node in inputs)
        last = tuple(at for at in positions if at not in used)
        used.update(positions)
        steps.append(Step(-1, positions, tuple(position_of[node] for node in outputs), last))
    steps.reverse()
    for number, (own, inputs, outputs) in enumerate(parts):
        form = _form(own, inputs, outputs)
        if form not in known:
            known[form] = len(pieces)
            pieces.append(_piece(module, own, inputs, outputs))
        steps[number] = Step(known[form], steps[number].inputs, steps[number].outputs, steps[number].last_used)
    returns = tuple(None if node is None else position_of[node] for node in returned)
    return Cut(pieces, steps, returns, len(position_of))


def _form(own: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node], outputs: Sequence[torch.fx.Node]) -> str:
    """Return a text with all that a piece's key depends on. Steps with equal texts call the same piece."""
    number = {node: f"%{at}" for at, node in enumerate([*inputs, *own])}
    storages: dict[int, int] = {}
    given = [
        (*_metadata(node), type(value), value.storage_offset(), value.untyped_storage().nbytes(), value.is_leaf)
        if isinstance(value := node.meta.get("example_value"), torch.Tensor)
        else repr(value)
        for node in inputs
    ]
    flags = [repr(node.meta.get("tensor_dict")) for node in inputs]
    shared = [storages.setdefault(key, len(storages)) for node in inputs for key in _storages(node)]
    body = [_operation(node, number.__getitem__) for node in own]
    return repr((body, given, flags, shared, [number[node] for node in outputs]))


def _piece(
    module: torch.fx.GraphModule,
    own: Sequence[torch.fx.Node],
    inputs: Sequence[torch.fx.Node],
    outputs: Sequence[torch.fx.Node],
) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, Any] = {}
    for at, node in enumerate(inputs):
        copies[node] = made = graph.placeholder(f"arg{at}")
        made.meta = dict(node.meta)
    for node in own:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    piece = torch.fx.GraphModule(module, graph)
    piece.meta = dict(module.meta)
    return piece
