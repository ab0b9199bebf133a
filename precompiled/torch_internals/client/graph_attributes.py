"""Turns tensors that Dynamo leaves on a graph's module into inputs of the graph.

Dynamo turns a function's arguments into inputs, but not the tensors of a compiled ``optimizer.step()``. The optimizer's
parameters and state stay attributes of the module, and the graph reads them (``get_attr``). AOTAutograd would put the
optimizer's tensors before the graph's inputs (torch/_functorch/aot_autograd.py: ``aot_module_simplified``). This file
puts them after the inputs, so the graph is the same in every process, and the client sends no tensor to a worker.

As AOTAutograd does, this file puts a list of the tensors into the frame's tracing context. When the optimizer is
deleted, torch empties this list (torch/_dynamo/variables/optimizer.py: ``create_finalizer``), so the tensors do not
stay alive.

Dynamo sets two meta entries on a placeholder. It sets the same entries on a node that reads a tensor of the module
(torch/_dynamo/variables/builder.py).

Private names: torch.fx.Node.meta["example_value"], torch.fx.Node.meta["tensor_dict"],
torch._guards.TracingContext.{try_get, params_flat}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from operator import attrgetter

import torch
import torch.fx
from torch._guards import TracingContext

from precompiled.core.errors import Bypass

_CARRIED = ("example_value", "tensor_dict")


def as_input(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    """Add an input to ``graph``. The input has Dynamo's metadata of the tensor that ``node`` returns."""
    made = graph.placeholder(node.name)
    made.meta = {name: node.meta[name] for name in _CARRIED if name in node.meta}
    return made


def lift_attributes(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """Return a graph that takes the tensors of its module as additional inputs, and a list of these tensors.

    The new inputs come last, in the order of their first use. If the module has no tensors, returns the graph itself.
    Raises Bypass if a tensor lacks Dynamo's metadata.
    """
    held: dict[str, torch.Tensor] = {}
    reads: dict[str, list[torch.fx.Node]] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and isinstance(value := attrgetter(str(node.target))(module), torch.Tensor):
            if "example_value" not in node.meta:
                raise Bypass(f"the graph contains {node.target}, a {type(value).__name__}", code="graph-attribute")
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
