"""What runs until an artifact is there: the graph, if its operators have an eager run that means what the program says.

Two have not. Activation checkpointing inside of a graph does not restore the random state when it computes again
(torch/_higher_order_ops/wrap.py: preserve_rng_state=False; the partitioner is meant to see to it), and nested compile
regions cannot be differentiated. Both are calls of a graph: so they are run as what the program wrote, as
``torch.utils.checkpoint.checkpoint`` and as a plain call.

Private names: torch.ops.higher_order.{tag_activation_checkpoint, wrap_activation_checkpoint, invoke_subgraph},
GraphModule.meta["_checkpoint_context_fn"]. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import checkpoint

# Where Dynamo keeps the context function of selective activation checkpointing (torch/_higher_order_ops/wrap.py).
CONTEXT = "_checkpoint_context_fn"


def eager(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph itself where it can run as it is; else a copy that can."""
    inner = {
        node.target: held
        for node in module.graph.nodes
        if node.op == "get_attr" and isinstance(held := getattr(module, node.target, None), torch.fx.GraphModule)
    }
    made = {name: eager(held) for name, held in inner.items()}
    replaced = [node for node in module.graph.nodes if node.op == "call_function" and _runner(node.target) is not None]
    if not replaced and all(made[name] is inner[name] for name in inner):
        return module
    root: dict[str, Any] = {
        node.target: made.get(node.target, getattr(module, node.target))
        for node in module.graph.nodes
        if node.op == "get_attr"
    }
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = _runner(node.target) or node.target
    copy = torch.fx.GraphModule(root, graph)
    copy.meta = module.meta
    return copy


def _runner(target: Any) -> Callable[..., Any] | None:
    operators = torch.ops.higher_order
    if target is operators.invoke_subgraph:
        return _call
    # Not looked up as attributes of torch.ops: versions differ in which of the two they have.
    if isinstance(target, torch._ops.HigherOrderOperator) and target._name in (
        "tag_activation_checkpoint",
        "wrap_activation_checkpoint",
    ):
        return _checkpoint
    return None


def _call(graph: torch.fx.GraphModule, identifier: str, *arguments: Any) -> Any:
    del identifier
    return graph(*arguments)


def _checkpoint(graph: torch.fx.GraphModule, *arguments: Any, **options: Any) -> Any:
    context = graph.meta.get(CONTEXT)
    if context is not None:
        options["context_fn"] = context
    return checkpoint(graph, *arguments, **{**options, "use_reentrant": False, "preserve_rng_state": True})
