"""Writes the operations of nested regions into the graph that calls the regions.

A region is a graph that another graph calls with ``invoke_subgraph``. Dynamo makes a region of each function that
``torch.compiler.nested_compile_region`` marks. With ``torch._dynamo.config.use_graph_deduplication``, Dynamo also makes
regions of equal parts of a graph.

For some graphs with regions, Inductor computes wrong gradients without an error message
(tests/programs/nested_region_program.py). With torch 2.13, a region returns its input, because the backward needs this
value. The calling graph treats this output and the input as two buffers, and writes other values into the input's
buffer. In a graph without regions, Inductor sees all uses of a buffer. Equal layers still compile only once if they run
in pieces (torch_internals/graph/layers.py).

Private names: torch.ops.higher_order.invoke_subgraph. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
import torch.fx


def inline_regions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the graph if it calls no region, or else a copy without regions. The copy shares the module's tensors."""
    inner = [one for one in module.modules() if isinstance(one, torch.fx.GraphModule)]
    if not any(_is_region(node) for one in inner for node in one.graph.nodes):
        return module
    graph, root = torch.fx.Graph(), dict[str, object]()
    copies = {node: graph.node_copy(node) for node in module.graph.nodes if node.op == "placeholder"}
    graph.output(_write(graph, root, module, copies))
    copy = torch.fx.GraphModule(root, graph)
    copy.meta = module.meta
    return copy


def _is_region(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and node.target is torch.ops.higher_order.invoke_subgraph


def _write(
    graph: torch.fx.Graph, root: dict[str, object], module: torch.fx.GraphModule, copies: dict[torch.fx.Node, Any]
) -> Any:
    """Append the operations of ``module`` to ``graph``, and return its outputs.

    ``copies`` maps nodes of the module to their copies in ``graph``. At first, ``copies`` contains only the module's
    inputs. The call of a region is mapped to a tuple of the region's outputs. ``root`` contains the attributes that
    ``graph`` reads.
    """
    for node in module.graph.nodes:
        if node in copies:
            continue
        if node.op == "output":
            return torch.fx.map_arg(node.args[0], copies.__getitem__)
        if _is_region(node):
            called, _identifier, *values = node.args
            region = attrgetter(called.target)(module)
            inputs = region.graph.find_nodes(op="placeholder")
            given = [torch.fx.map_arg(value, copies.__getitem__) for value in values]
            copies[node] = _write(graph, root, region, dict(zip(inputs, given, strict=True)))
        elif node.target is operator.getitem and isinstance(made := copies.get(node.args[0]), tuple):
            copies[node] = made[node.args[1]]
        elif node.op == "get_attr":
            if not all(map(_is_region, node.users)):
                copies[node] = _read(graph, root, module, node, copies.__getitem__)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    raise AssertionError("a graph ends with its output")


def _read(
    graph: torch.fx.Graph,
    root: dict[str, object],
    module: torch.fx.GraphModule,
    node: torch.fx.Node,
    copy_of: Callable[[torch.fx.Node], Any],
) -> torch.fx.Node:
    """Append a node that reads an attribute. The attribute is a tensor, or the graph of a higher-order operator."""
    value = attrgetter(str(node.target))(module)
    if isinstance(value, torch.fx.GraphModule):
        value = inline_regions(value)
    made = graph.node_copy(node, copy_of)
    made.target = _name(root, str(node.target), value)
    return made


def _name(root: dict[str, object], name: str, value: object) -> str:
    """Add an attribute to ``root``. Two regions may have different attributes of the same name."""
    while root.setdefault(name, value) is not value:
        name += "_"
    return name
