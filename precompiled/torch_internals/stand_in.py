"""What runs until an artifact is there: the graph, eagerly, such that the program around it cannot tell.

What may differ from the compiled run and what never does is a contract (docs/stand-in.md). What autograd sees of it is
in autograd_edges.py; when it may be called at all, in surroundings.py. And its operators must have an eager run that
means what the program says. Some have not. Activation checkpointing inside of a graph does not restore the random
state when it computes again (torch/_higher_order_ops/wrap.py: preserve_rng_state=False; the partitioner is meant to see
to it), and nested compile regions cannot be differentiated. Both are calls of a graph: so they are run as
``torch.utils.checkpoint.checkpoint`` and as a plain call. And a batch norm in training saves its running statistics,
whose values its backward does not read: a compiled call before that backward changes them, in a way that autograd
takes for an error, where two compiled or two eager calls do not. Last, some operators keep their input although all
that their backward asks is where it was greater than something: compiled code keeps that, and the caller may change the
input meanwhile. They get a copy.

Private names: torch.ops.higher_order.{tag_activation_checkpoint, wrap_activation_checkpoint, invoke_subgraph},
torch._ops.HigherOrderOperator._name, torch.fx.GraphModule.meta["_checkpoint_context_fn"],
torch.fx._lazy_graph_module._LazyGraphModule.real_recompile. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import checkpoint

from precompiled.torch_internals import autograd_edges, modes, surroundings

# Where Dynamo keeps the context function of selective activation checkpointing (torch/_higher_order_ops/wrap.py).
CONTEXT = "_checkpoint_context_fn"


# What changes a tensor's metadata or history in place: an input of the eager run is not the caller's tensor then.
_CHANGE_THE_TENSOR = frozenset(
    {"as_strided_", "detach_", "requires_grad_", "resize_", "resize_as_", "retain_grad", "set_", "set_data", "squeeze_",
     "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
)  # fmt: skip

# What gives a view of its first argument.
_VIEWS = frozenset(
    {"as_strided", "chunk", "detach", "diagonal", "expand", "expand_as", "flatten", "getitem", "movedim", "narrow",
     "permute", "reshape", "select", "split", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unbind",
     "unflatten", "unsqueeze", "view", "view_as"}
)  # fmt: skip
# What changes its first argument, and has another name than torch's rule for that (a trailing "_").
_WRITE = frozenset(
    {"setitem", "iadd", "iand", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow", "irshift", "isub",
     "itruediv", "ixor"}
)  # fmt: skip


# What keeps its input, and compiled code for it only a mask or indices: by the backwards of torch's derivatives.yaml
# and Inductor's decompositions, compared with each other in tests/torch_internals/test_stand_in_operators.py.
_KEEP_THEIR_INPUT = frozenset(
    {"amax", "amin", "aminmax", "clamp", "clamp_max", "clamp_min", "clip", "cummax", "cummin", "fmax", "fmin", "gather",
     "hardshrink", "hardsigmoid", "hardtanh", "leaky_relu", "max", "max_pool1d", "max_pool2d", "max_pool3d", "maximum",
     "median", "min", "minimum", "nan_to_num", "nanmedian", "nansum", "prelu", "relu6", "rrelu", "sgn", "softshrink",
     "threshold"}
)  # fmt: skip

# What sets a mode of autograd's, of attention's or of autocast, or begins a transform, in the midst of a graph.
_SET_MODES = frozenset(
    {"_enter_autocast", "_set_grad_enabled", "set_grad_enabled", "_sdpa_kernel", "_sdpa_kernel_variadic",
     "_enter_dual_level", "_set_fwd_grad_enabled", "_grad_increment_nesting", "_jvp_increment_nesting",
     "_vmap_increment_nesting"}
)  # fmt: skip


class StandIn:
    """Runs a graph eagerly. Thread-safe."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        run = eager(module)
        # Dynamo's modules write their code at the first call, through Module.__call__, which prints an error that the
        # program may well catch, and would be in the way of each call (torch/fx/_lazy_graph_module.py).
        getattr(run, "real_recompile", lambda: None)()
        self._run: Callable[..., Any] = run.forward
        self._sets_modes = any(name in _SET_MODES for _, name in _calls(module))
        self._plain = not _changes_an_input(module)
        self._writes = _writes(module)
        self._last = _last(module)
        self._draws: bool | None = None
        self._apart: dict[tuple[int, ...], frozenset[int]] = {}  # by the inputs that have a history

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""
        if not self._sets_modes:
            return self._called(args)
        # Compiled code sets none of them. What the graph has set, it would have set back at its end.
        with modes.set_back_after_an_error():
            return self._called(args)

    def _called(self, args: Sequence[Any]) -> Any:
        positions = self._differentiable(args)
        if not positions:
            return autograd_edges.run_alone(self._run, args)
        apart = self._without_gradient(args, positions)
        return autograd_edges.run_between(self._run, args, positions, self._last, apart)

    def _without_gradient(self, args: Sequence[Any], positions: list[int]) -> frozenset[int]:
        asked = tuple(at for at in positions if not args[at].is_leaf)
        if not asked:
            return frozenset()
        if asked not in self._apart:
            self._apart[asked] = autograd_edges.without_gradient(self._run, args, positions)
        return self._apart[asked]

    def _differentiable(self, args: Sequence[Any]) -> list[int]:
        if not self._plain or not autograd_edges.records():
            return []
        positions = autograd_edges.differentiable(args)
        if self._writes and autograd_edges.share_memory(args, positions):
            return []  # what changes one of them has to change the history of the other
        return positions

    def repeated(self, args: Sequence[Any]) -> tuple[object | None, bool]:
        """The checkpoint that takes this run and another one for the same, if there is one; whether it is the other."""
        return surroundings.checkpoint_around() if self._is_recorded(args) else (None, False)

    @staticmethod
    def _is_recorded(args: Sequence[Any]) -> bool:
        return torch.is_grad_enabled() and bool(autograd_edges.differentiable(args))

    def must_not_mix(self, args: Sequence[Any]) -> bool:
        """Whether it is one of two runs that must draw the same random numbers, which eager and compiled code do not.

        Such pairs are: a run in a custom autograd Function's forward and one in a backward (a reentrant checkpoint's);
        and two runs without gradients in another checkpoint. (With gradients, its second run is as its first one was:
        safe_points.py.)
        """
        if self._draws is False:
            return False
        checkpointed = surroundings.in_a_checkpoint()
        if checkpointed and self._is_recorded(args):
            return False
        if not (checkpointed or surroundings.in_a_backward() or surroundings.in_a_function()):
            return False
        if self._draws is None:
            self._draws = surroundings.draws(self._run, args)
        return self._draws


def _calls(module: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, str]]:
    """The operations of a graph and of those in it, with the names of what they call."""
    for held in module.modules():
        if isinstance(held, torch.fx.GraphModule):
            for node in held.graph.nodes:
                if node.op.startswith("call_"):
                    yield node, _name(node)


def _changes_an_input(module: torch.fx.GraphModule) -> bool:
    return any(name in _CHANGE_THE_TENSOR and _is_of_an_input(node) for node, name in _calls(module))


def _is_of_an_input(node: torch.fx.Node) -> bool:
    """Whether it changes an input, or what may be a view of one."""
    changed = _viewed(node.args[0] if node.args else None, _VIEWS | _CHANGE_THE_TENSOR)
    return not isinstance(changed, torch.fx.Node) or changed.op == "placeholder"


def _viewed(value: Any, through: Set[str], until: Set[torch.fx.Node] = frozenset()) -> Any:
    """What a value is a view of, through operations of these names; itself where it is none, or one of ``until``."""
    while isinstance(value, torch.fx.Node) and value not in until and value.op != "placeholder":
        if _name(value) not in through:
            break
        value = value.args[0] if value.args else None
    return value


def _name(node: torch.fx.Node) -> str:
    """Of what an operation calls."""
    return str(getattr(node.target, "__name__", node.target))


def _last(module: torch.fx.GraphModule) -> frozenset[int]:
    """Which outputs of the graph none of its operators takes."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    values = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    nodes = [(at, value) for at, value in enumerate(values) if isinstance(value, torch.fx.Node)]
    return frozenset(at for at, node in nodes if len(node.users) == 1)


def _writes(module: torch.fx.GraphModule) -> bool:
    """Whether it may change a tensor in place; by name, as Python and torch name what does."""
    return any(
        (name.endswith("_") and not name.endswith("__"))
        or name in _WRITE
        or node.kwargs.get("inplace")
        or node.kwargs.get("out") is not None
        for node, name in _calls(module)
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
    copied = _inputs_to_copy(module.graph)
    if not replaced and not copied and all(made[name] is inner[name] for name in inner):
        return module
    root: dict[str, Any] = {
        node.target: made.get(node.target, getattr(module, node.target))
        for node in module.graph.nodes
        if node.op == "get_attr"
    }
    graph = torch.fx.Graph()
    nodes: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, nodes))
    for node, argument in copied:
        with graph.inserting_before(nodes[node]):
            nodes[node].replace_input_with(nodes[argument], graph.call_function(_copy, (nodes[argument],)))
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = _runner(node.target) or node.target
    copy = torch.fx.GraphModule(root, graph)
    copy.meta = module.meta
    return copy


def _inputs_to_copy(graph: torch.fx.Graph) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
    """Operations that keep an input which the caller may change before the backward, and that input."""
    outputs = set(next(node for node in graph.nodes if node.op == "output").all_input_nodes)
    found = []
    for node in graph.nodes:
        if not node.op.startswith("call_") or node.kwargs.get("inplace"):
            continue
        if _name(node).removeprefix("_") in _KEEP_THEIR_INPUT:
            found += [(node, value) for value in node.all_input_nodes if _is_the_callers(value, outputs)]
    return found


def _is_the_callers(node: torch.fx.Node, outputs: set[torch.fx.Node]) -> bool:
    """Whether the caller has a tensor of the same memory: an input, an output, or what they are views of."""
    viewed = _viewed(node, _VIEWS, outputs)
    return isinstance(viewed, torch.fx.Node) and (viewed in outputs or viewed.op == "placeholder")


def _copy(value: Any) -> Any:
    is_kept = isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()
    return value.clone() if is_kept else value


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
    input: torch.Tensor, running_mean: torch.Tensor | None, running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, training: bool = False,
    *rest: Any, **options: Any,
) -> torch.Tensor:  # fmt: skip
    mean, var = _unversioned(training, running_mean, running_var)
    return torch.nn.functional.batch_norm(input, mean, var, weight, bias, training, *rest, **options)


def _batch_norm(
    input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None, training: bool, *rest: Any, **options: Any,
) -> torch.Tensor:  # fmt: skip
    mean, var = _unversioned(training, running_mean, running_var)
    return torch.batch_norm(input, weight, bias, mean, var, training, *rest, **options)


def _unversioned(training: bool, *statistics: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [value.data if training and value is not None else value for value in statistics]


def _call(graph: torch.fx.GraphModule, identifier: str, *arguments: Any) -> Any:
    del identifier
    return graph(*arguments)


def _checkpoint(graph: torch.fx.GraphModule, *arguments: Any, **options: Any) -> Any:
    context = graph.meta.get(CONTEXT)
    if context is not None:
        options["context_fn"] = context
    return checkpoint(graph, *arguments, **{**options, "use_reentrant": False, "preserve_rng_state": True})
