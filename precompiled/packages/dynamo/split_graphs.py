"""Stores and rebuilds the parts of a graph that Dynamo has cut at DistributedDataParallel's buckets.

Because of these cuts, each bucket's gradients are sent while the next bucket's backward runs. Dynamo gets a
``torch.fx.GraphModule`` with a submodule for each part. The submodule's ``submod`` is the backend's result for the
part, and its ``unwrap_singleton_tuple`` says whether the part returns its only output without a tuple. An entry stores
the calls as plain data (steps), and the parts as separate graphs. This file also finds and rebuilds the function by
which torch 2.15 replaces an empty graph.

Private names: torch._dynamo.backends.distributed.SubmodCompiler.compile_submod,
torch._dynamo.eval_frame.OptimizedModule._orig_mod, torch._dynamo.output_graph.noop_graph_call (2.15),
torch._dynamo.disable. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._dynamo import output_graph

from precompiled.packages.describe.errors import NotPortable

# The kinds of steps. An argument or value is ("step", number of an earlier step), ("tuple", *values) or
# ("constant", value).
#
# - ("input", name)
# - ("call", number of the graph, arguments, whether it returns its only output without a tuple)
# - ("item", step, index)
# - ("output", value)
Step = tuple[Any, ...]


def module_of(value: object) -> torch.fx.GraphModule | None:
    """The module that calls the parts, if ``value`` is a callable of such a module; else None."""
    module = getattr(value, "_orig_mod", None)
    if module is None:
        module = getattr(getattr(value, "_torchdynamo_orig_callable", None), "__self__", None)
    return module if isinstance(module, torch.fx.GraphModule) else None


def is_of_nothing(value: object) -> bool:
    """Whether ``value`` is the function by which Dynamo replaces an empty graph."""
    nothing = getattr(output_graph, "noop_graph_call", None)
    return nothing is not None and getattr(value, "_torchdynamo_orig_callable", None) is nothing


def of_nothing() -> object:
    """Make the function by which Dynamo replaces an empty graph."""
    return torch._dynamo.disable(output_graph.noop_graph_call, reason="do not trace Dynamo-compiled graph")


def steps_of(module: torch.fx.GraphModule, number_of: Callable[[Any], int | None]) -> tuple[Step, ...]:
    """Return the steps of a module. ``number_of`` returns the index of a part's graph among the entry's graphs, or None
    if the part has no graph.

    Raises NotPortable if a part has no graph, or if the module does more than call parts.
    """
    steps: list[Step] = []
    numbers: dict[torch.fx.Node, int] = {}

    def shown(argument: object) -> object:
        if isinstance(argument, torch.fx.Node):
            return ("step", numbers[argument])
        if isinstance(argument, (tuple, list)):
            return ("tuple", *map(shown, argument))
        if argument is None or type(argument) in (bool, int, float, str):
            return ("constant", argument)
        raise NotPortable(f"a part of a cut graph is given a {type(argument).__qualname__}", code="package-graph")

    for node in module.graph.nodes:
        if node.op == "placeholder":
            step: Step = ("input", node.name)
        elif node.op == "call_module" and not node.kwargs:
            part = module.get_submodule(str(node.target))
            number = number_of(getattr(part, "submod", None))
            if number is None:
                raise NotPortable(
                    f"the part {node.target} of a cut graph is for this process alone", code="package-graph"
                )
            step = ("call", number, tuple(map(shown, node.args)), bool(getattr(part, "unwrap_singleton_tuple", False)))
        elif node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[1], int):
            step = ("item", shown(node.args[0]), node.args[1])
        elif node.op == "output":
            step = ("output", shown(node.args[0]))
        else:
            raise NotPortable(f"a cut graph has a {node.op} of {node.target}", code="package-graph")
        numbers[node] = len(steps)
        steps.append(step)
    return tuple(steps)


def called_in_turn(steps: Sequence[Step], functions: Sequence[Callable[..., object]]) -> torch.fx.GraphModule:
    """Build a module that calls the entry's graphs in turn. torch.fx releases a tensor after its last use."""
    graph = torch.fx.Graph()
    nodes: list[torch.fx.Node] = []

    def meant(shown: Any) -> object:
        kind, *rest = shown
        if kind == "step":
            return nodes[rest[0]]
        return tuple(map(meant, rest)) if kind == "tuple" else rest[0]

    parts = torch.nn.Module()
    for kind, *rest in steps:
        if kind == "input":
            node = graph.placeholder(rest[0])
        elif kind == "call":
            number, arguments, only = rest
            name = f"part_{len(nodes)}"
            parts.add_module(name, _Part(functions[number], only))
            node = graph.call_module(name, tuple(map(meant, arguments)))
        elif kind == "item":
            node = graph.call_function(operator.getitem, (meant(rest[0]), rest[1]))
        else:
            node = graph.output(meant(rest[0]))
        nodes.append(node)
    return torch.fx.GraphModule(parts, graph)


class _Part(torch.nn.Module):
    def __init__(self, function: Callable[..., object], only: bool) -> None:
        super().__init__()
        self.function, self.only = function, only

    def forward(self, *args: object) -> object:
        found = self.function(*args)
        return found[0] if self.only and isinstance(found, (tuple, list)) else found
