"""Restores runtime assertions that a graph has lost.

Dynamo records ``torch._check(x.item() == y.size(0) * 2)`` in its shape environment and also writes it into the graph.
But once a value is known to equal an expression of sizes, the graph represents both by one node, so the graph's
assertion compares a node with itself. Plain torch.compile is not affected, because Inductor reads assertions from the
shape environment. A worker and the eager run have only the graph. So this file writes each lost assertion into the
graph, after the last of the values that the assertion uses. The restored assertions become part of the captured graph
(and of its key) and of the eager run, and raise the same RuntimeError as torch's own assertion.

This file also writes out assertions on the sizes of unbacked inputs (``mark_unbacked``), which Dynamo never writes into
the graph. Such an assertion says that two sizes are equal, as broadcasting requires, or that a size is within the
program's bounds.

Private names: torch.fx.Node.meta["example_value"], torch.fx.Node.meta["unbacked_bindings"],
torch.fx.experimental.symbolic_shapes.{CallMethodKey, ShapeEnv.{deferred_runtime_asserts, replacements,
is_unbacked_symint}}, torch._subclasses.fake_tensor.FakeTensor.fake_mode, torch.SymInt.node.{expr, shape_env},
torch.utils._sympy.interp.sympy_interp, torch.utils._sympy.reference.PythonReferenceAnalysis,
torch.utils._pytree.SequenceKey, torch.fx.proxy.GraphAppendingTracer, torch.ops.aten._assert_scalar.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from typing import Any

import sympy
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import CallMethodKey, ShapeEnv
from torch.fx.proxy import GraphAppendingTracer
from torch.utils._pytree import SequenceKey
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph.symbolic_sizes import without_assertions

_SIZES = {
    "size": torch.ops.aten.sym_size.int,
    "stride": torch.ops.aten.sym_stride.int,
    "storage_offset": torch.ops.aten.sym_storage_offset.default,
}


def restore_assertions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return the graph if it has all its assertions, or else a copy that has them. Raises Bypass if this fails."""
    env = _shape_env(module)
    if env is None or not env.deferred_runtime_asserts:
        return module
    return _restored(module, env, _unbacked_inputs(module, env))


def _restored(
    module: torch.fx.GraphModule, env: ShapeEnv, inputs: frozenset[sympy.Symbol] = frozenset()
) -> torch.fx.GraphModule:
    """Insert the lost assertions. ``inputs``: the unbacked symbols that come from the graph's inputs; empty for
    subgraphs.
    """
    inner = {
        str(node.target): held
        for node in module.graph.nodes
        if node.op == "get_attr" and isinstance(held := getattr(module, str(node.target), None), torch.fx.GraphModule)
    }
    made = {name: _restored(held, env) for name, held in inner.items()}
    lost = _lost(module, env, inputs)
    if not lost and all(made[name] is inner[name] for name in inner):
        return module
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    if lost:
        _add(graph, lost)
    root: dict[str, object] = {
        node.target: made.get(node.target, getattr(module, node.target))
        for node in module.graph.nodes
        if node.op == "get_attr"
    }
    copy = torch.fx.GraphModule(root, graph)
    copy.meta = module.meta
    return copy


def _shape_env(module: torch.fx.GraphModule) -> ShapeEnv | None:
    for node in module.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, FakeTensor):
            return value.fake_mode.shape_env
        if isinstance(value, torch.SymInt):
            env: ShapeEnv = value.node.shape_env
            return env
    return None


def _unbacked_inputs(module: torch.fx.GraphModule, env: ShapeEnv) -> frozenset[sympy.Symbol]:
    found: set[sympy.Symbol] = set()
    for node in module.graph.find_nodes(op="placeholder"):
        for size, _ in _sizes(node):
            found |= without_assertions(size).free_symbols
    return frozenset(symbol for symbol in found if env.is_unbacked_symint(symbol))


def _sizes(node: torch.fx.Node) -> list[tuple[torch.SymInt, int | None]]:
    """The symbolic sizes of an input, each with its dimension. If the input itself is a size, its dimension is None."""
    value = node.meta.get("example_value")
    if isinstance(value, torch.SymInt):
        return [(value, None)]
    if not isinstance(value, torch.Tensor):
        return []
    return [(size, dimension) for dimension, size in enumerate(value.shape) if isinstance(size, torch.SymInt)]


def _lost(module: torch.fx.GraphModule, env: ShapeEnv, inputs: frozenset[sympy.Symbol]) -> list[object]:
    """The assertions on ``inputs``, and on those symbols of this graph that torch has replaced by expressions."""
    replaced = inputs | {
        symbol
        for node in module.graph.nodes
        for symbol in node.meta.get("unbacked_bindings") or {}
        if symbol in env.replacements
    }
    return [
        noted.expr
        for all_noted in env.deferred_runtime_asserts.values()
        for noted in all_noted
        if replaced & noted.expr.free_symbols
    ]


def _add(graph: torch.fx.Graph, expressions: list[Any]) -> None:
    """Insert each expression's assertion after the last of the values that the expression uses."""
    tracer = GraphAppendingTracer(graph)
    values: dict[sympy.Symbol, object] = {}
    left = list(dict.fromkeys(expressions))
    needed = {symbol for expression in left for symbol in expression.free_symbols}
    nodes = list(graph.nodes)
    of_tensors: list[tuple[sympy.Symbol, torch.fx.Node, int]] = []
    for node, following in itertools.pairwise(nodes):
        found = node.meta.get("unbacked_bindings") or {}
        if node.op == "placeholder":
            for value, dimension in _sizes(node):
                if not (symbol := without_assertions(value)).is_Symbol:
                    continue
                if dimension is None:
                    values.setdefault(symbol, torch.fx.Proxy(node, tracer))
                else:
                    of_tensors.append((symbol, node, dimension))
        if following.op == "placeholder":
            continue
        with graph.inserting_before(following):
            for symbol, tensor, dimension in of_tensors:
                if symbol in needed - values.keys():
                    size = graph.call_function(_SIZES["size"], (tensor, dimension))
                    values[symbol] = torch.fx.Proxy(size, tracer)
            of_tensors = []
            for symbol, path in found.items():
                values[symbol] = torch.fx.Proxy(_at(graph, node, tuple(path)), tracer)
            for expression in [item for item in left if item.free_symbols <= values.keys()]:
                left.remove(expression)
                _assert(graph, expression, values)
    if left:
        raise Bypass(f"the graph asserts {left[0]}, but lacks one of its values", code="runtime-assertion")


def _assert(graph: torch.fx.Graph, expression: object, values: Mapping[sympy.Symbol, object]) -> None:
    try:
        condition = sympy_interp(PythonReferenceAnalysis, values, expression)
    except Exception as error:
        raise Bypass(f"it asserts {expression}, which a graph cannot express", code="runtime-assertion") from error
    if isinstance(condition, torch.fx.Proxy):
        message = f"Runtime assertion failed for expression {_named(expression, values)}"
        graph.call_function(torch.ops.aten._assert_scalar.default, (condition.node, message))


def _named(expression: Any, values: Mapping[sympy.Symbol, object]) -> str:
    """The expression with symbol names that are equal in all processes. A symbol's own number differs between
    processes.
    """
    names = {symbol: sympy.Symbol(f"v{position}") for position, symbol in enumerate(values)}
    return str(expression.xreplace(names))


def _at(graph: torch.fx.Graph, node: torch.fx.Node, path: tuple[object, ...]) -> torch.fx.Node:
    """The part of a node's value at this path, in the notation of torch.fx.experimental.symbolic_shapes."""
    if not path:
        return node
    if isinstance(path[0], CallMethodKey) and path[0].name in _SIZES:
        numbers = [key.idx for key in path[1:] if isinstance(key, SequenceKey)]
        if len(numbers) == len(path) - 1 <= 1:
            return graph.call_function(_SIZES[path[0].name], (node, *numbers))
    if isinstance(path[0], SequenceKey):
        return _at(graph, graph.call_function(operator.getitem, (node, path[0].idx)), path[1:])
    raise Bypass(f"the value of {node} is at {path}", code="runtime-assertion")
