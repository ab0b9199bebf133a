"""Supports Inductor's setting ``freezing``: a worker compiles weights as constants, and a client recreates these.

With freezing, Inductor treats the weights as constants, folds values that are computed only from them, and returns a
function that drops the weights from its arguments. Torch cannot serialize such a result. So this file puts a
``Frozen``, a kind of OutputCode, into AOTAutograd's bundle. ``Frozen`` contains the code, the positions of the
remaining arguments, and a description of each constant.

Each constant is the same as in plain torch.compile (docs/decisions/0025). If a constant is a weight or a view of one,
the loading process uses its own weight, so an in-place change of the weight has the same effect as in plain
torch.compile. Folded values are stored in the artifact. A constant in oneDNN's own format is not stored: the loading
process repeats the operator call that created the constant.

Private names: torch._inductor.compile_fx.fw_compiler_freezing, torch._inductor.freezing.freeze,
torch._inductor.constant_folding.ConstantFolder.{add_node_replacement, fetch_args_kwargs_from_env},
torch._inductor.output_code.{OutputCode, CompiledFxGraph.{constants, frozen_param_names, prepare_for_serialization}},
torch._functorch._aot_autograd.aot_autograd_result.BundledCompiledForward, torch._guards.TracingContext.{get,
params_flat}, torch.fx.GraphModule._param_name_to_source, torch._dynamo.source.LocalSource,
torch.utils._pytree.tree_map_only, torch._ops.{OpOverload.{_schema, _overloadname},
OpOverloadPacket._qualified_op_name}.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
import torch.fx
import torch.utils._pytree as pytree
from torch._dynamo.source import LocalSource
from torch._functorch._aot_autograd.aot_autograd_result import BundledCompiledForward
from torch._guards import TracingContext
from torch._inductor import compile_fx, constant_folding
from torch._inductor import freezing as torchs
from torch._inductor.output_code import OutputCode

from precompiled.core.errors import CompileFailed
from precompiled.torch_internals.patches import Patches


@dataclass(frozen=True)
class View:
    """A weight of the process, or a view of a weight. ``weight``: its position among the weights."""

    weight: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # relative to the weight's own offset

    def made(self, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        weight = weights[self.weight]
        if (self.size, self.stride, self.offset) == (tuple(weight.size()), weight.stride(), 0):
            return weight
        with torch.no_grad():
            return weight.as_strided(self.size, self.stride, weight.storage_offset() + self.offset)


@dataclass(frozen=True)
class Folded:
    """A constant that was computed from weights."""

    value: torch.Tensor

    def made(self, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.value


@dataclass(frozen=True)
class Packed:
    """A constant in oneDNN's own format, stored as the call that creates it, because its bytes cannot be stored."""

    operator: tuple[str, ...]  # namespace, name, and the overload if one was called
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def made(self, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        operator = attrgetter(".".join(self.operator))(torch.ops)
        args, kwargs = pytree.tree_map_only(
            (View, Folded, Packed), lambda constant: constant.made(weights), (self.args, self.kwargs)
        )
        with torch.no_grad():
            packed: torch.Tensor = operator(*args, **kwargs)
        return packed


Constant = View | Folded | Packed


class Frozen(OutputCode):
    """The compiled code of a graph with freezing. Stores contain pickles of this class, so its names must not change.

    ``kept``: the positions of those arguments of AOTAutograd that the code takes. ``order``: for each of AOTAutograd's
    arguments, its position among the graph's inputs, or None if the code does not read it.
    """

    _boxed_call = True

    def __init__(self, graph: Any, kept: list[int], constants: dict[str, Constant], weights: list[int | None]) -> None:
        """``weights``: for each tensor of the module (AOTAutograd's first arguments), its index in the weights."""
        super().__init__()
        self.graph = graph
        self.kept = kept
        self.constants = constants
        self.weights = weights
        self.order: list[int | None] = []

    def __call__(self, inputs: Any) -> Any:
        taken = [inputs[position] for position in self.kept]
        inputs.clear()
        return self.graph(taken)

    def prepare_for_serialization(self) -> None:
        self.graph = copy.copy(self.graph)
        self.graph.prepare_for_serialization()

    def post_compile(self, example_inputs: Sequence[Any], constants: object, graph_kwargs: object) -> None:
        loadable = BundledCompiledForward(self.graph)
        loadable.load(example_inputs)
        self.graph = loadable.post_compile(self.graph, graph_kwargs)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        self.graph.set_triton_bundle(triton_bundle)

    def bind(self, weights: Sequence[torch.Tensor]) -> None:
        """Create the code's constants in the process that loads the code."""
        made = {name: constant.made(weights) for name, constant in self.constants.items()}
        self.graph.constants = {**(self.graph.constants or {}), **made}

    def reordered(self, args: Sequence[Any]) -> list[Any]:
        """Return AOTAutograd's arguments in order, selected from the graph's inputs."""
        return [None if position is None else args[position] for position in self.order]

    def settle(self, inputs: int) -> None:
        """In the worker, compute ``order``. ``inputs``: how many of the graph's inputs precede the weights."""
        self.order = [*(None if number is None else inputs + number for number in self.weights), *range(inputs)]
        if any(self.order[position] is None for position in self.kept):
            raise CompileFailed("an argument of the frozen code is not an input", code="not-serializable")


def code_of(part: Any) -> Any:
    """The CompiledFxGraph of a bundle's forward or backward part."""
    return part.result.graph if isinstance(part.result, Frozen) else part.result


class _Freezing:
    """Collects the weights and packed tensors of the compiles that run while ``collected`` is open."""

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        self._weights = list(weights)
        # Maps the id of a tensor in oneDNN's format to the tensor and the call that creates it. The reference to the
        # tensor keeps the id unique.
        self._packed: dict[int, tuple[torch.Tensor, object, tuple[object, ...], dict[str, object]]] = {}

    def noted(self, folder: Any, node: torch.fx.Node, tensor: torch.Tensor) -> None:
        """Record a tensor that replaces a node's value."""
        if tensor.layout is not torch.strided:
            args, kwargs = folder.fetch_args_kwargs_from_env(node)
            self._packed[id(tensor)] = (tensor, node.target, args, kwargs)

    def place(self, tensor: torch.Tensor) -> int | None:
        return next((number for number, weight in enumerate(self._weights) if weight is tensor), None)

    def constant(self, value: torch.Tensor) -> Constant:
        if value.layout is torch.strided:
            return self._view(value) or Folded(value)
        _, target, args, kwargs = self._packed.get(id(value), (None, None, (), {}))
        if isinstance(target, torch._ops.OpOverload):
            operator = (*target._schema.name.split("::"), target._overloadname)
        elif isinstance(target, torch._ops.OpOverloadPacket):
            operator = tuple(target._qualified_op_name.split("::"))
        else:
            said = f"a constant has the layout {value.layout}, and was made by {target}"
            raise CompileFailed(said, code="not-serializable")
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.constant, (args, kwargs))
        return Packed(operator, tuple(args), dict(kwargs))

    def _view(self, value: torch.Tensor) -> View | None:
        memory = value.untyped_storage().data_ptr()
        for number, weight in enumerate(self._weights):
            if memory and weight.untyped_storage().data_ptr() == memory and weight.dtype == value.dtype:
                offset = value.storage_offset() - weight.storage_offset()
                return View(number, tuple(value.size()), value.stride(), offset)
        return None


@contextmanager
def collected(weights: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within this context, results of compiles with freezing can be serialized. ``weights``: the program's weights."""
    found = _Freezing(weights)
    compiler, freeze = compile_fx.fw_compiler_freezing, torchs.freeze
    of_graph: list[tuple[torch.fx.GraphModule, list[int]]] = []

    def noting(add: Callable[..., None]) -> Callable[..., None]:
        def noted(self: object, node: torch.fx.Node, tensor: torch.Tensor) -> None:
            found.noted(self, node, tensor)
            add(self, node, tensor)

        return noted

    def freezing(*args: object, **options: object) -> tuple[torch.fx.GraphModule, list[int]]:
        of_graph.append(freeze(*args, **options))
        return of_graph[-1]

    def compiled(*args: object, inner_compile: Any, **options: object) -> Frozen:
        flat = [found.place(tensor) for tensor in TracingContext.get().params_flat or []]
        graphs = []

        def inner(*given: object, **named: object) -> object:
            graphs.append(inner_compile(*given, **named))
            return graphs[-1]

        of_graph.clear()
        compiler(*args, inner_compile=inner, **options)
        ((model, kept), (graph,)) = of_graph[-1], graphs
        names = graph.frozen_param_names
        constants = {name: found.constant(getattr(model, held)) for name, held in names.items()}
        return Frozen(graph, list(kept), constants, flat)

    with Patches() as patches:
        patches.replace(compile_fx, "fw_compiler_freezing", lambda _: compiled)
        patches.replace(torchs, "freeze", lambda _: freezing)
        patches.replace(constant_folding.ConstantFolder, "add_node_replacement", noting)
        yield


def hold(module: torch.fx.GraphModule, weights: Sequence[torch.Tensor]) -> None:
    """Turn a graph's last inputs back into tensors of its module, as in Dynamo's own graph.

    The nodes keep the metadata that Dynamo gave them.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, weight in zip(placeholders[len(placeholders) - len(weights) :], weights, strict=True):
        name = f"held_{node.name}"
        if isinstance(weight, torch.nn.Parameter):
            module.register_parameter(name, weight)
        else:
            module.register_buffer(name, weight)
        with module.graph.inserting_before(node):
            made = module.graph.get_attr(name)
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
        module._param_name_to_source[name] = LocalSource(name)
    module.recompile()
