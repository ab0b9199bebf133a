"""What runs until an artifact is there: the graph, eagerly, such that the program around it cannot tell.

What may differ from the compiled run and what never does is a contract (docs/stand-in.md). What autograd sees of it is
in autograd_edges.py; when it may be called at all, in surroundings.py. And its operators must have an eager run that
means what the program says. Three have not. Activation checkpointing inside of a graph does not restore the random
state when it computes again (torch/_higher_order_ops/wrap.py: preserve_rng_state=False; the partitioner is meant to see
to it), and nested compile regions cannot be differentiated. Both are calls of a graph: so they are run as
``torch.utils.checkpoint.checkpoint`` and as a plain call. And a batch norm in training saves its running statistics,
whose values its backward does not read: a compiled call before that backward changes them, in a way that autograd
takes for an error, where two compiled or two eager calls do not.

Private names: torch.ops.higher_order.{tag_activation_checkpoint, wrap_activation_checkpoint, invoke_subgraph},
GraphModule.meta["_checkpoint_context_fn"]. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import checkpoint

from precompiled.safe_points import Hold
from precompiled.torch_internals import autograd_edges, surroundings

# Where Dynamo keeps the context function of selective activation checkpointing (torch/_higher_order_ops/wrap.py).
CONTEXT = "_checkpoint_context_fn"


# What changes a tensor's metadata or history in place: an input of the eager run is not the caller's tensor then.
_CHANGE_THE_TENSOR = frozenset(
    {"as_strided_", "detach_", "requires_grad_", "resize_", "resize_as_", "retain_grad", "set_", "set_data", "squeeze_",
     "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
)  # fmt: skip


class StandIn:
    """Runs a graph eagerly. Thread-safe."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self._run: Callable[..., Any] = eager(module).forward
        self._plain = not _changes_tensors(module)
        self._draws: bool | None = None

    def __call__(self, *args: Any, hold: Hold | None = None) -> Any:
        """The graph's outputs; ``hold`` is released when nothing computes this run again."""
        positions = self._differentiable(args)
        if not positions:
            return autograd_edges.run_alone(self._run, args)
        return autograd_edges.run_between(self._run, args, positions, hold)

    def _differentiable(self, args: Sequence[Any]) -> list[int]:
        return autograd_edges.differentiable(args) if self._plain and autograd_edges.records() else []

    def may_be_repeated(self, args: Sequence[Any]) -> bool:
        """Whether what surrounds this call may compute it again in its backward, and take one run for the other."""
        return surroundings.saved_tensors_are_hooked() and bool(self._differentiable(args))

    def must_not_mix(self, args: Sequence[Any]) -> bool:
        """Whether it is one of two runs that must draw the same random numbers, which eager and compiled code do not.

        So are a run in a custom autograd Function's forward and one in a backward (a reentrant checkpoint's), and one
        without gradients where saved tensors are hooked (a part of what another checkpoint computes again).
        """
        repeats = (surroundings.in_a_backward, surroundings.in_a_function, surroundings.saved_tensors_are_hooked)
        if not any(test() for test in repeats):
            return False
        if self._draws is None:
            self._draws = surroundings.draws(self._run, args)
        return self._draws


def _changes_tensors(module: torch.fx.GraphModule) -> bool:
    return any(
        node.op.startswith("call_") and getattr(node.target, "__name__", node.target) in _CHANGE_THE_TENSOR
        for held in module.modules()
        if isinstance(held, torch.fx.GraphModule)
        for node in held.graph.nodes
    )


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
    if target is torch.nn.functional.batch_norm:
        return _functional_batch_norm
    if target is torch.batch_norm:
        return _batch_norm
    if target is operators.invoke_subgraph:
        return _call
    # Not looked up as attributes of torch.ops: versions differ in which of the two they have.
    if isinstance(target, torch._ops.HigherOrderOperator) and target._name in (
        "tag_activation_checkpoint",
        "wrap_activation_checkpoint",
    ):
        return _checkpoint
    return None


def _functional_batch_norm(
    input: torch.Tensor, mean: torch.Tensor | None, var: torch.Tensor | None, weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, training: bool = False, *rest: Any, **options: Any,
) -> torch.Tensor:  # fmt: skip
    mean, var = (value.data if training and value is not None else value for value in (mean, var))
    return torch.nn.functional.batch_norm(input, mean, var, weight, bias, training, *rest, **options)


def _batch_norm(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, mean: torch.Tensor | None,
    var: torch.Tensor | None, training: bool, *rest: Any,
) -> torch.Tensor:  # fmt: skip
    mean, var = (value.data if training and value is not None else value for value in (mean, var))
    return torch.batch_norm(input, weight, bias, mean, var, training, *rest)


def _call(graph: torch.fx.GraphModule, identifier: str, *arguments: Any) -> Any:
    del identifier
    return graph(*arguments)


def _checkpoint(graph: torch.fx.GraphModule, *arguments: Any, **options: Any) -> Any:
    context = graph.meta.get(CONTEXT)
    if context is not None:
        options["context_fn"] = context
    return checkpoint(graph, *arguments, **{**options, "use_reentrant": False, "preserve_rng_state": True})
