"""Tensors that Dynamo leaves on the module of its graph, as inputs of the graph.

Dynamo makes inputs of what a function takes, but not of what a compiled ``optimizer.step()`` works on: parameters and
state are attributes of the module that it hands over, and the graph reads them (``get_attr``). AOTAutograd would put
them before the graph's inputs (torch/_functorch/aot_autograd.py: ``aot_module_simplified``). So does this, behind them:
then a graph is the same whatever process holds the tensors, and no tensor travels.

The list of the tensors is given to the frame's tracing context, as AOTAutograd does: torch empties it when the
optimizer is gone (torch/_dynamo/variables/optimizer.py: ``create_finalizer``), whose state would live on otherwise.

Private names: torch.fx.Node.meta["example_value"], torch.fx.Node.meta["tensor_dict"],
torch._guards.TracingContext.{try_get, params_flat}. Checked on 2.11.0, 2.13.0, 2.15.0. Dynamo gives both entries to
these nodes as to placeholders (torch/_dynamo/variables/builder.py).
"""

from __future__ import annotations

from operator import attrgetter

import torch
import torch.fx
from torch._guards import TracingContext

from precompiled.core.errors import Bypass

_CARRIED = ("example_value", "tensor_dict")


def as_input(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """A new input of ``graph``, with what Dynamo says of the tensor that ``node`` gives."""
    made = graph.placeholder(node.name)
    made.meta = {name: node.meta[name] for name in _CARRIED if name in node.meta}
    return made


def lifted(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The graph with these tensors as its last inputs, in the order of their first use, and the tensors.

    The graph itself where it holds none. Raises Bypass where Dynamo says too little of one.
    """
    held: dict[str, torch.Tensor] = {}
    reads: dict[str, list[torch.fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(value := attrgetter(str(node.target))(module), torch.Tensor):
            if "example_value" not in node.meta:
                raise Bypass(f"the graph holds {node.target}, a {type(value).__name__}", code="graph-attribute")
            held[str(node.target)] = value
            reads.setdefault(str(node.target), []).append(node)
    if not held:
        return module, []
    graph = torch.fx.Graph()
    copies = {node: graph.node_copy(node) for node in module.graph.nodes if node.op == "placeholder"}
    for nodes in reads.values():
        copies |= dict.fromkeys(nodes, as_input(graph, nodes[0]))
    for node in module.graph.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    copy = torch.fx.GraphModule(module, graph)
    copy.meta = module.meta
    tensors = list(held.values())
    if (context := TracingContext.try_get()) is not None:
        context.params_flat = tensors
    return copy, tensors
