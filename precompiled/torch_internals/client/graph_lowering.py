"""Converts graphs into a form that a worker can rebuild: inlines nested regions, restores lost assertions, and lifts
the module's tensors to inputs. If the graph is a backward that compiled autograd captured, also traces the graph to
ATen.

The graph of a backward that compiled autograd captured differs from other graphs in two ways:

- Its first input is a list of tensors that the graph empties (node.meta["steal_arg"]).
- It calls functions of this process: ``torch._dynamo.compiled_autograd.ops.*``, which C++ binds when a backward first
  needs them, and closures over one AOTAutograd backward. A worker lacks these functions.

So the client flattens the graph and traces it to ATen. AOTAutograd would begin with the same trace. The client traces
even on a hit, because the key depends on the traced graph. The traced graph needs no gradients, because the client
refuses a backward that is itself differentiated.

Private names: torch._dynamo.compiled_autograd.{in_compiled_autograd_region, Op}, torch._C._autocast_supported_devices,
torch.fx.Node.meta["example_value"], torch.fx.Node.meta["tensor_dict"], torch.fx.Node.meta["steal_arg"],
torch.fx.experimental.proxy_tensor.make_fx, torch._subclasses.fake_tensor.FakeTensor.fake_mode.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo.compiled_autograd
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx

from precompiled.core.errors import Bypass
from precompiled.torch_internals.client import graph_attributes, nested_regions, runtime_assertions
from precompiled.torch_internals.eager import stand_in


@dataclass(frozen=True)
class Plain:
    """A graph in two forms. ``module`` is the form for the capture. ``as_given`` computes the same results with
    Dynamo's operators.

    ``module`` and ``as_given`` take the result of ``flatten(args)``, followed by ``held``.
    """

    module: torch.fx.GraphModule
    as_given: torch.fx.GraphModule
    flatten: Callable[[tuple[Any, ...]], list[Any]] | None = None
    held: list[torch.Tensor] = field(default_factory=list)
    traced: bool = False

    @contextlib.contextmanager
    def modes(self) -> Iterator[None]:
        """Set the modes for the capture. If the graph was traced to ATen, autocast and grad mode are off.

        The trace has already applied autocast and grad mode. If a worker applied the program's autocast again, it would
        add casts where a backward has disabled autocast (torch.amp.custom_bwd).
        """
        with contextlib.ExitStack() as stack:
            if self.traced:
                stack.enter_context(torch.no_grad())
                for device in torch._C._autocast_supported_devices():
                    if torch.is_autocast_enabled(device):
                        stack.enter_context(torch.autocast(device, enabled=False))
            yield

    def eager(self) -> stand_in.StandIn:
        """A stand-in that runs until the artifact is loaded. Created on demand, because a hit needs no stand-in."""
        return stand_in.StandIn(self.as_given)

    def taking_all(self, function: Callable[..., object]) -> Callable[..., object]:
        """Adapt ``function``, which takes flattened inputs, to the arguments that Dynamo passes."""
        flatten, held = self.flatten, self.held
        if flatten is not None:
            return lambda *args: function(*flatten(args), *held)
        if held:
            return lambda *args: function(*args, *held)
        return function


def plain(module: torch.fx.GraphModule) -> Plain:
    """Return the graph in a form that a worker can rebuild, or raise Bypass."""
    module = runtime_assertions.restore_assertions(nested_regions.inline_regions(module))
    if torch._dynamo.compiled_autograd.in_compiled_autograd_region and _is_of_one_process(module):
        flat, flatten = _flat(module)
        return Plain(_traced(flat), flat, flatten, traced=True)
    module, held = graph_attributes.lift_attributes(module)
    return Plain(module, module, held=held)


def _is_of_one_process(module: torch.fx.GraphModule) -> bool:
    """Whether the graph is a captured backward, and not a function that such a backward calls."""
    return any(
        node.meta.get("steal_arg")
        if node.op == "placeholder"
        else isinstance(node.target, torch._dynamo.compiled_autograd.Op)
        or "<locals>" in getattr(node.target, "__qualname__", "")
        for node in module.graph.nodes
        if node.op in ("placeholder", "call_function")
    )


def _flat(module: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, Callable[[tuple[Any, ...]], list[Any]]]:
    """Return a graph that takes the tensors of its list inputs as separate inputs, and a function that flattens the
    arguments in this way.
    """
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    picks: list[tuple[int, int | None]] = []
    stolen: list[int] = []

    def add(node: torch.fx.Node, *pick: Any) -> None:
        copies[node] = graph_attributes.as_input(graph, node)
        picks.append(pick)

    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for position, node in enumerate(placeholders):
        if not node.meta.get("steal_arg"):
            add(node, position, None)
            continue
        stolen.append(position)
        known: dict[int, torch.fx.Node] = {}
        for user in node.users:
            if user.target is not operator.getitem or type(user.args[1]) is not int:
                raise Bypass("compiled autograd's graph uses its inputs in an unknown way", code="unsupported-input")
            first = known.setdefault(user.args[1], user)
            if first is user:
                add(user, position, user.args[1])
            else:
                copies[user] = copies[first]
    for node in module.graph.nodes:
        if node not in copies and node.op != "placeholder":
            copies[node] = graph.node_copy(node, copies.__getitem__)

    def flatten(args: tuple[Any, ...]) -> list[object]:
        taken = [args[position] if item is None else args[position][item] for position, item in picks]
        for position in stolen:
            args[position].clear()  # otherwise the activations would live until the backward ends
        return taken

    return torch.fx.GraphModule(module, graph), flatten


def _traced(flat: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph in ATen operators."""
    inputs = [node for node in flat.graph.nodes if node.op == "placeholder"]
    values = [node.meta.get("example_value") for node in inputs]
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), contextlib.nullcontext())

    def run(*arguments: object) -> Any:
        outputs = torch.fx.Interpreter(flat).run(*arguments)
        # Grad mode may be on at this point, if the backward of a custom autograd.Function caused a graph break.
        if any(isinstance(value, torch.Tensor) and value.requires_grad for value in outputs):
            raise Bypass("compiled autograd captured a backward that is itself differentiated", code="double-backward")
        return outputs

    with mode:
        traced = make_fx(run)(*values)
    traced.graph.eliminate_dead_code()
    outputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    if len(outputs) != len(inputs):
        raise Bypass("compiled autograd's graph changes its inputs when it is traced", code="unsupported-input")
    for before, after in zip(inputs, outputs, strict=True):
        after.meta = dict(before.meta)
    return traced
