"""Encodes a Dynamo graph as plain data, and decodes it.

This data is the canonical form of the graph. It contains no placeholder names, sources, stack traces, files or lines,
so graphs that differ only in these facts have the same bytes. The key is computed from these bytes, and the worker
rebuilds the graph from these bytes alone. So everything that affects the compile affects the key.

The encoding is the list of all graphs, outermost first. A graph is a list of nodes in order:

- ``[op, target, args, kwargs]``, where op is "f" (call_function), "m" (call_method) or "o" (output). A fifth entry is
  for annotations (node.meta["custom"]), which come from torch.fx.traceback.annotate or from torch itself. Inductor
  obeys torch's own annotations
- ``["p"]``: a placeholder
- ``["g", number]``: a graph that is an argument of a higher-order operator. ``["g", number, policy]`` is such a graph
  with a policy of selective checkpointing (selective_checkpointing.py)

A launch of a user's Triton kernel has a special target (user_kernels.py). Arguments::

    null, true, 1, 0.5, "text"      themselves (JSON keeps 1 and 1.0 apart)
    [a, ...]                        a list
    {"n": i}                        the i-th node
    {"t": [a, ...]}                 a tuple                    {"d": [[k, v], ...]}    a dict, in its order
    {"s": [a, b, c]}                a slice                    {"r": [a, b, c]}        a range
    {"e": 0}                        ...                        {"c": [re, im]}         a complex number
    {"z": [a, ...]}                 a torch.Size
    {"x": [kind, name]}             a torch.dtype, device, layout or memory_format
    {"P": [name, ...]}              a placement of a DTensor

This file reads the graph's code generator by a private name, because this attribute has no public name.

Private names: torch.fx.Graph._codegen. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.fx

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import (
    call_targets,
    process_groups,
    replaced_functions,
    selective_checkpointing,
)
from precompiled.torch_internals.ranks import dtensors
from precompiled.torch_internals.user_code import user_kernels

_OPS = {"call_function": "f", "call_method": "m", "output": "o"}
_ATOMS = frozenset({bool, int, float, str, type(None)})

# If a node has one of these meta entries, which AOTAutograd reads, the graph is bypassed.
MEANINGFUL_META = tuple("ac_graph_id has_backward_hook is_wrapped recompute steal_arg user_cache_hash".split())


def modules(graphs: list[list[list[Any]]]) -> dict[str, str]:
    """Return the modules, operators and kernels that a worker needs for these graphs, as a map from name to digest."""
    found = {}
    for graph in graphs:
        for node in graph:
            if node[0] == "f":
                of = user_kernels if node[1][0] == user_kernels.KIND else call_targets
                found.update(of.modules_of(node[1]))
            elif node[0] == "g" and len(node) > 2:
                found.update(selective_checkpointing.modules_of(node[2]))
    return found


def missing_operators(graphs: list[list[list[Any]]]) -> str:
    """Why this process lacks custom operators of these graphs; "" if it has all of them."""
    targets = [node[1] for graph in graphs for node in graph if node[0] == "f"]
    return "; ".join(dict.fromkeys(filter(None, map(call_targets.missing_operator, targets))))


MIXED_RANKS = "all ranks must run its collectives either eager or compiled"

# Operators whose eager run needs far more memory than compiled code.
_NO_STAND_IN = {
    "flex_attention": "eager flex_attention materialises its scores",
    "flex_attention_backward": "eager flex_attention materialises its scores",
}


def no_stand_in(graphs: list[list[list[Any]]]) -> str:
    """Return why these graphs must not run eagerly while their artifact is pending; "" if they may run eagerly."""
    for graph in graphs:
        for node in graph:
            if node[0] == "f" and node[1][0] == "hop" and node[1][1] in _NO_STAND_IN:
                return _NO_STAND_IN[node[1][1]]
            if node[0] == "f" and call_targets.is_collective(node[1]):
                # Ranks would deadlock if the compiled code orders the collectives differently from the eager run.
                return MIXED_RANKS
    return ""


def is_plain(graph: torch.fx.Graph) -> bool:
    """Whether the graph's inputs are exactly its placeholders. False for graphs of torch.export, which take pytrees."""
    return type(graph._codegen) is torch.fx.graph.CodeGen


def encode(module: torch.fx.GraphModule, groups: Mapping[str, str] = MappingProxyType({})) -> list[list[list[object]]]:
    """The canonical form of a graph and of the graphs that are arguments of its higher-order operators, in order of
    first use.

    ``groups`` maps the graph's process groups to names in the key. Raises Bypass for anything that cannot be rebuilt
    with exactly the same meaning.
    """
    encoder = _Encoder(groups)
    encoder.graph(module)
    return encoder.graphs


class _Encoder:
    def __init__(self, groups: Mapping[str, str]) -> None:
        self.graphs: list[list[list[object]]] = []
        self._groups = groups
        self._known: dict[int, int] = {}
        # A cache of encoded targets, because encoding may compute a digest of sources.
        self._targets: dict[object, list[str]] = {}
        self._replaced = replaced_functions.replaced_functions()

    def graph(self, module: torch.fx.GraphModule) -> int:
        """Encode a graph, unless it is encoded already. Returns its number."""
        known = self._known.get(id(module))
        if known is not None:
            return known
        if not is_plain(module.graph):
            raise Bypass("the graph comes from torch.export", code="exported-graph")
        number = self._known[id(module)] = len(self.graphs)
        encoded: list[list[object]] = []
        self.graphs.append(encoded)
        index: dict[torch.fx.Node, int] = {}
        for position, node in enumerate(module.graph.nodes):
            index[node] = position
            encoded.append(self._node(node, index, module))
        return number

    def _node(self, node: torch.fx.Node, index: dict[torch.fx.Node, int], module: torch.fx.GraphModule) -> list[object]:
        if node.op == "placeholder":
            return ["p"]
        for name in MEANINGFUL_META:
            if node.meta.get(name):
                raise Bypass(f"the node {node.name} is marked {name!r}", code="marked-node")
        if node.op == "get_attr":
            held = getattr(module, str(node.target), None)
            if not isinstance(held, torch.fx.GraphModule):
                raise Bypass(f"the graph contains {node.target}, a {type(held).__name__}", code="graph-attribute")
            number = self.graph(held)
            context = held.meta.get(selective_checkpointing.CONTEXT)
            return ["g", number] if context is None else ["g", number, selective_checkpointing.encode(context)]
        code = _OPS.get(node.op)
        if code is None:
            raise Bypass(f"the graph has a node of kind {node.op}", code="unsupported-node")
        target: Any = None
        arguments, keywords = node.args, node.kwargs
        if code == "f" and user_kernels.is_launch(node.target):
            target, keywords = user_kernels.encode(node)
        elif code == "f":
            target = self._targets.get(node.target)
            if target is None:
                replaced_functions.refuse_target(node.target, self._replaced)
                target = self._targets[node.target] = call_targets.encode(node.target)
            if self._groups and call_targets.names_group(node.target):
                arguments, keywords = process_groups.with_names(node, self._groups)
        elif code == "m":
            target = node.target
            replaced_functions.refuse_method(target, self._replaced)
        args = [_encode_argument(argument, index) for argument in arguments]
        kwargs = [[name, _encode_argument(value, index)] for name, value in keywords.items()]
        marks = node.meta.get("custom")
        if not marks:
            return [code, target, args, kwargs]
        if "stream" in marks:
            raise Bypass("the graph uses several streams", code="marked-node")
        return [code, target, args, kwargs, encode_constant(marks)]


def encode_constant(value: object) -> object:
    """Encode a value that contains no nodes, in the form of an argument. Raises Bypass if the value cannot be
    encoded.
    """
    return _encode_argument(value, {})


def decode_constant(encoded: object) -> object:
    return _decode_argument(encoded, [])


def _encode_argument(argument: Any, index: dict[torch.fx.Node, int]) -> object:
    kind = type(argument)
    if kind in _ATOMS:
        return argument
    if kind is torch.fx.Node:
        return {"n": index[argument]}
    if kind is torch.Size:
        return {"z": [_encode_argument(item, index) for item in argument]}
    if isinstance(argument, tuple):
        if hasattr(argument, "_fields") or kind.__module__.startswith("torch.return_types"):
            raise Bypass(f"the graph has an argument of type {kind.__qualname__}", code="unsupported-argument")
        return {"t": [_encode_argument(item, index) for item in argument]}
    if isinstance(argument, list):
        return [_encode_argument(item, index) for item in argument]
    if isinstance(argument, dict):
        return {
            "d": [[_encode_argument(key, index), _encode_argument(value, index)] for key, value in argument.items()]
        }
    if kind is slice:
        return {"s": [_encode_argument(item, index) for item in (argument.start, argument.stop, argument.step)]}
    if kind is range:
        return {"r": [argument.start, argument.stop, argument.step]}
    if argument is Ellipsis:
        return {"e": 0}
    if kind is complex:
        return {"c": [argument.real, argument.imag]}
    if kind is torch.dtype:
        return {"x": ["dtype", str(argument).removeprefix("torch.")]}
    if kind is torch.device:
        return {"x": ["device", str(argument)]}
    if kind in (torch.layout, torch.memory_format):
        return {"x": [kind.__name__, str(argument).removeprefix("torch.")]}
    if dtensors.is_placement(argument):
        return {"P": dtensors.encode_placement(argument)}
    raise Bypass(
        f"the graph has an argument of type {kind.__module__}.{kind.__qualname__}", code="unsupported-argument"
    )


def decode(graphs: list[list[list[Any]]]) -> torch.fx.GraphModule:
    """The graph as a module whose placeholders are named ``arg0``, ``arg1``, ...

    Raises ValueError, TypeError, KeyError, IndexError, AttributeError or ImportError for data that ``encode`` never
    returns.
    """
    return _decode_graph(graphs, 0, {})


def _decode_graph(
    graphs: list[list[list[Any]]], number: int, made: dict[int, torch.fx.GraphModule]
) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    root = torch.nn.Module()
    nodes: list[torch.fx.Node] = []
    placeholders = 0
    for code, *rest in graphs[number]:
        if code == "p":
            nodes.append(graph.placeholder(f"arg{placeholders}"))
            placeholders += 1
            continue
        if code == "g":
            inner, *context = rest
            if inner <= number:
                raise ValueError(f"graph {number} holds graph {inner}, which comes before it")
            name = f"graph_{inner}"
            if inner not in made:
                made[inner] = _decode_graph(graphs, inner, made)
                if context:
                    made[inner].meta[selective_checkpointing.CONTEXT] = selective_checkpointing.decode(context[0])
            setattr(root, name, made[inner])
            nodes.append(graph.get_attr(name))
            continue
        target, args, kwargs, *marks = rest
        decoded_args = tuple(_decode_argument(argument, nodes) for argument in args)
        decoded_kwargs = {name: _decode_argument(value, nodes) for name, value in kwargs}
        if code == "f" and target[0] == user_kernels.KIND:
            operator, numbers = user_kernels.decode(target)
            nodes.append(graph.call_function(operator, decoded_args, {**numbers, **decoded_kwargs}))
        elif code == "f":
            nodes.append(graph.call_function(call_targets.decode(target), decoded_args, decoded_kwargs))
        elif code == "m":
            nodes.append(graph.call_method(target, decoded_args, decoded_kwargs))
        elif code == "o":
            nodes.append(graph.create_node("output", "output", decoded_args, decoded_kwargs))
        else:
            raise ValueError(f"unknown kind of node {code!r}")
        if marks:
            nodes[-1].meta["custom"] = decode_constant(marks[0])
    return torch.fx.GraphModule(root, graph)


def _decode_argument(argument: Any, nodes: list[torch.fx.Node]) -> object:
    if type(argument) in _ATOMS:
        return argument
    if type(argument) is list:
        return [_decode_argument(item, nodes) for item in argument]
    ((kind, content),) = argument.items()
    if kind == "n":
        return nodes[content]
    if kind == "e":
        return Ellipsis
    if kind == "c":
        return complex(*content)
    if kind == "r":
        return range(*content)
    if kind == "P":
        return dtensors.decode_placement(content)
    if kind == "x":
        name, value = content
        if name not in ("dtype", "device", "layout", "memory_format"):
            raise ValueError(f"unknown kind of constant {name!r}")
        return torch.device(value) if name == "device" else getattr(torch, value)
    if kind == "d":
        return {_decode_argument(key, nodes): _decode_argument(value, nodes) for key, value in content}
    items = [_decode_argument(item, nodes) for item in content]
    if kind == "t":
        return tuple(items)
    if kind == "s":
        return slice(*items)
    if kind == "z":
        return torch.Size(items)
    raise ValueError(f"unknown kind of argument {kind!r}")
