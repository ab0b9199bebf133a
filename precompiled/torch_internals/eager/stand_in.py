"""Runs a graph eagerly until its artifact is ready (the *stand-in*), with the behavior of compiled code.

docs/explanation/stand-in.md is the contract, and lists the permitted differences. autograd_edges.py makes the eager run
look like compiled code to autograd. enclosing_regions.py detects the regions in which some calls must not run eagerly.
Some operators need help to run eagerly:

- Activation checkpointing inside a graph does not restore the random state when it recomputes
  (torch/_higher_order_ops/wrap.py: preserve_rng_state=False; the partitioner is expected to handle it). So
  checkpointing runs as ``torch.utils.checkpoint.checkpoint``.
- A batch norm in training saves its running statistics, although its backward does not read their values. If a later
  call changes the statistics before the backward, autograd would raise an error that compiled code does not raise. So
  the batch norm gets detached statistics.
- Some operators save their input although their backward needs only a mask of it. Compiled code saves the mask, so the
  caller may change the input before the backward. These operators get a copy.

Private names: torch.ops.higher_order.{tag_activation_checkpoint, wrap_activation_checkpoint},
torch._ops.HigherOrderOperator._name, torch.fx.GraphModule.meta["_checkpoint_context_fn"],
torch.fx._lazy_graph_module._LazyGraphModule.real_recompile, torch.fx.Node.meta["example_value"],
torch.fx.experimental.symbolic_shapes.is_concrete_int, torch._dynamo.compiled_autograd,
torch._functorch._aot_autograd.runtime_wrappers.mark_dynamo_propagated_dynamic_indices (2.13, 2.15),
torch._functorch._aot_autograd.runtime_wrappers.maybe_mark_dynamic_helper (2.11). Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
import torch._dynamo.compiled_autograd  # must come first: it and runtime_wrappers import each other
import torch.fx
from torch._functorch._aot_autograd import runtime_wrappers
from torch.fx.experimental.symbolic_shapes import is_concrete_int
from torch.utils.checkpoint import checkpoint

from precompiled.core import interruptions
from precompiled.torch_internals.eager import autograd_edges, enclosing_regions, undo_effects
from precompiled.torch_internals.graph import ambient_modes, operation_effects, source_lines
from precompiled.torch_internals.graph.selective_checkpointing import CONTEXT

log = logging.getLogger("precompiled.stand_in")


# Torch's function that marks dynamic dimensions. Torch 2.11's function has a different name and sets a different
# attribute.
_mark = (
    runtime_wrappers.mark_dynamo_propagated_dynamic_indices
    if hasattr(runtime_wrappers, "mark_dynamo_propagated_dynamic_indices")
    else runtime_wrappers.maybe_mark_dynamic_helper
)


class StandIn:
    """Runs a graph eagerly. Thread-safe."""

    def __init__(self, module: torch.fx.GraphModule, run: Callable[..., object] | None = None) -> None:
        """``run``: compiled code that runs instead of the graph's operations. If it is None, the operations run."""
        self._module = module
        self._run: Callable[..., object] = run or self._operations
        self._sets_modes = any(operation_effects.name(node) in operation_effects.SET_MODES for node in _calls(module))
        self._plain = not _changes_an_input(module)
        self._writes = any(operation_effects.writes(node) for node in _calls(module))
        self._last = _last(module)
        self._symbolic = _symbolic_sizes(module)
        self._draws: bool | None = None
        # Maps the positions of the inputs that require a gradient to the positions of those inputs that never get a
        # gradient.
        self._apart: dict[tuple[int, ...], frozenset[int]] = {}

    def __call__(self, *args: Any) -> object:
        """Run the graph and return its outputs."""
        # Compiled code casts a weight at each call. Autocast's cache would outlive the call and miss in-place changes.
        caches = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            if not self._sets_modes:
                outputs = self._called(args)
            else:
                # Compiled code sets no modes. The graph restores the modes at its end, but not after an error.
                with ambient_modes.set_back_after_an_error():
                    outputs = self._called(args)
        finally:
            torch.set_autocast_cache_enabled(caches)
        for at, dimensions in self._symbolic:
            _mark(outputs[at], dimensions)
        return outputs

    @cached_property
    def _operations(self) -> Callable[..., object]:
        """Runs the graph's operations, also on fake tensors, which have no memory that compiled code could read."""
        return _eager_function(self._module)

    @cached_property
    def effects(self) -> undo_effects.Effects:
        """What a run changes. Determined at the first run, because most stand-ins never run."""
        return undo_effects.Effects(self._module, _chain)

    def input_names(self) -> list[str]:
        """The names of the inputs in the program. Each name occurs once."""
        names = [source_lines.input_name(node) for node in self._module.graph.find_nodes(op="placeholder")]
        return [name if names.count(name) == 1 else f"{name} (input {at})" for at, name in enumerate(names)]

    def before(self, args: Sequence[object]) -> Callable[[Exception], bool]:
        """Prepare a run. Returns a function that undoes the run after an exception.

        The returned function takes the exception, and returns False if the run cannot be undone, or if compiled code
        would raise the same exception.
        """
        try:
            before = self.effects.before(args, lambda: torch.is_grad_enabled() and not self._differentiable(args))
        except Exception as error:  # a bug in this project must not prevent the run
            interruptions.pass_on(error)
            log.warning("a failed eager run will not be undone", exc_info=True)
            return lambda error: False

        def undone(error: Exception) -> bool:
            try:
                return before.undo(error, self._run.__code__)
            except Exception as problem:
                interruptions.pass_on(problem)
                log.warning("a failed eager run was not undone", exc_info=True)
                return False

        return undone

    @staticmethod
    def looks_for_nan(args: Sequence[object]) -> bool:
        """Whether autograd checks the gradients of each operator for NaN. Compiled code counts as one operator."""
        return torch.is_anomaly_check_nan_enabled() and torch.is_anomaly_enabled() and StandIn.is_recorded(args)

    def _called(self, args: Sequence[object]) -> Any:
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
            self._apart[asked] = autograd_edges.without_gradient(self._operations, args, positions)
        return self._apart[asked]

    def _differentiable(self, args: Sequence[object]) -> list[int]:
        if not self._plain or not autograd_edges.records():
            return []
        positions = autograd_edges.differentiable(args)
        if self._writes and autograd_edges.share_memory(args, positions):
            return []  # the inputs share memory: an in-place change of one must also change the history of the other
        return positions

    def repeated(self, args: Sequence[object]) -> tuple[object | None, bool]:
        """Return the checkpoint that treats this run and another run as one, or None. Also return whether this is the
        second of the two runs.
        """
        return enclosing_regions.checkpoint_around() if self.is_recorded(args) else (None, False)

    @staticmethod
    def is_recorded(args: Sequence[object]) -> bool:
        """Whether autograd records this run, so that a backward may follow."""
        return torch.is_grad_enabled() and bool(autograd_edges.differentiable(args))

    def must_not_mix(self, args: Sequence[object]) -> bool:
        """Whether this is one of two runs that must draw the same random numbers.

        Eager and compiled code draw different numbers, so both runs must be eager, or both compiled. Such pairs are:

        - a run in the forward of a custom autograd Function, and a run in a backward (of a reentrant checkpoint)
        - two runs without gradients in a non-reentrant checkpoint

        Two runs with gradients in a non-reentrant checkpoint do not count, because safe_points.py ensures that both are
        eager, or both compiled.
        """
        if self._draws is False:
            return False
        checkpointed = enclosing_regions.in_a_checkpoint()
        if checkpointed and self.is_recorded(args):
            return False
        if not (checkpointed or enclosing_regions.in_a_backward() or enclosing_regions.in_a_function()):
            return False
        return self.draws(args)

    def draws(self, args: Sequence[object]) -> bool:
        """Whether a run draws random numbers."""
        if self._draws is None:
            self._draws = enclosing_regions.draws(self._operations, args)
        return self._draws


def _eager_function(module: torch.fx.GraphModule) -> Callable[..., object]:
    run = eager(module)
    # Compile the module's code now. Otherwise, Dynamo's module would compile the code at its first call. The module
    # would then run each call through Module.__call__, which takes longer and prints errors that the program may catch
    # (torch/fx/_lazy_graph_module.py).
    getattr(run, "real_recompile", lambda: None)()
    return run.forward


def _calls(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """The operations of a graph and of its subgraphs."""
    for held in module.modules():
        if isinstance(held, torch.fx.GraphModule):
            yield from (node for node in held.graph.nodes if node.op.startswith("call_"))


def _changes_an_input(module: torch.fx.GraphModule) -> bool:
    """Whether an operation changes the metadata of an input, or of a possible view of an input, in place."""
    changing = (node for node in _calls(module) if operation_effects.name(node) in operation_effects.CHANGE_THE_TENSOR)
    return any(_chain(node)[-1].op == "placeholder" or not node.all_input_nodes for node in changing)


def _chain(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Return the node, then the node that it is a view of, and so on, up to an input or a node that is not a view."""
    chain = [node]
    while chain[-1].op.startswith("call_") and chain[-1].all_input_nodes:
        if (
            not operation_effects.gives_a_view(chain[-1])
            and operation_effects.name(chain[-1]) not in operation_effects.CHANGE_THE_TENSOR
        ):
            break
        chain.append(chain[-1].all_input_nodes[0])
    return chain


def _last(module: torch.fx.GraphModule) -> frozenset[int]:
    """The positions of the outputs that no operator of the graph uses."""
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    values = output.args[0] if isinstance(output.args[0], (tuple, list)) else (output.args[0],)
    nodes = [(at, value) for at, value in enumerate(values) if isinstance(value, torch.fx.Node)]
    return frozenset(at for at, node in nodes if len(node.users) == 1)


def _symbolic_sizes(module: torch.fx.GraphModule) -> list[tuple[int, set[int]]]:
    """The symbolic dimensions of each output that is a tensor. Empty if there are none.

    Compiled code marks symbolic dimensions on its outputs, and Dynamo treats them as dynamic in the next graph.
    """
    (output,) = (node for node in module.graph.nodes if node.op == "output")
    if not isinstance(output.args[0], (tuple, list)):
        return []
    values = [value.meta.get("example_value") if isinstance(value, torch.fx.Node) else None for value in output.args[0]]
    found = [
        (at, {number for number, size in enumerate(value.shape) if not is_concrete_int(size)})
        for at, value in enumerate(values)
        if isinstance(value, torch.Tensor)
    ]
    return found if any(dimensions for _, dimensions in found) else []


def eager(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the graph if it can run eagerly without changes, or else a changed copy that can run eagerly."""
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
    root: dict[str, object] = {
        node.target: made.get(node.target, getattr(module, node.target))
        for node in module.graph.nodes
        if node.op == "get_attr"
    }
    graph = torch.fx.Graph()
    nodes: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, nodes))
    for node, argument, owners in copied:
        with graph.inserting_before(nodes[node]):
            copy_of = graph.call_function(_copy, (nodes[argument], *(nodes[owner] for owner in owners)))
            nodes[node].replace_input_with(nodes[argument], copy_of)
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = _runner(node.target) or node.target
    copy = torch.fx.GraphModule(root, graph)
    copy.meta = module.meta
    return copy


def _inputs_to_copy(graph: torch.fx.Graph) -> list[tuple[torch.fx.Node, torch.fx.Node, list[torch.fx.Node]]]:
    """Operations that keep an input for their backward although the caller may change this input before the backward.

    Returns each operation, the input, and the caller's tensors with which the input may share memory.
    """
    output = next(node for node in graph.nodes if node.op == "output")
    callers = {node for value in output.all_input_nodes for node in _chain(value)}
    found = []
    for node in graph.nodes:
        if not node.op.startswith("call_") or operation_effects.writes(node):
            continue
        if operation_effects.name(node).removeprefix("_") in operation_effects.KEEP_THEIR_INPUT:
            for value in node.all_input_nodes:
                owners = [made for made in _chain(value) if made in callers or made.op == "placeholder"]
                if owners:
                    found.append((node, value, owners))
    return found


def _copy(value: object, *owners: object) -> object:
    """Copy the value if it shares memory with an owner. Otherwise, an operator such as ``contiguous`` has copied it
    already.
    """
    if not (isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()):
        return value
    storage = autograd_edges.storage(value)
    is_the_callers = any(isinstance(one, torch.Tensor) and autograd_edges.storage(one) == storage for one in owners)
    return value.clone() if is_the_callers else value


def _runner(target: object) -> Callable[..., object] | None:
    # The operators are compared by name, because some versions of torch lack one of them.
    if isinstance(target, torch._ops.HigherOrderOperator) and target._name in (
        "tag_activation_checkpoint",
        "wrap_activation_checkpoint",
    ):
        return _checkpoint
    return operation_effects.with_unversioned_statistics(target)


def _checkpoint(graph: torch.fx.GraphModule, *arguments: object, **options: object) -> object:
    context = graph.meta.get(CONTEXT)
    if context is not None:
        options["context_fn"] = context
    return checkpoint(graph, *arguments, **{**options, "use_reentrant": False, "preserve_rng_state": True})
