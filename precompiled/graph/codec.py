"""A Dynamo graph as plain data, and back.

The data *is* the canonical form: it knows nothing of placeholder names, sources, stack traces, files and lines, so two
graphs that differ in those only have the same bytes. The key hashes these bytes and the worker rebuilds the graph from
them alone, so nothing can change what is compiled without changing the key.

A graph is a list of nodes in order, each ``[op, target, args, kwargs]`` (placeholders: ``["p"]``), with arguments::

    null, true, 1, 0.5, "text"      themselves (JSON keeps 1 and 1.0 apart)
    [a, ...]                        a list
    {"n": i}                        the i-th node
    {"t": [a, ...]}                 a tuple                    {"d": [[k, v], ...]}    a dict, in its order
    {"s": [a, b, c]}                a slice                    {"r": [a, b, c]}        a range
    {"e": 0}                        ...                        {"c": [re, im]}         a complex number
    {"z": [a, ...]}                 a torch.Size
    {"x": [kind, name]}             a torch.dtype, device, layout or memory_format
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from precompiled.errors import Bypass
from precompiled.torch_internals import targets

_OPS = {"call_function": "f", "call_method": "m", "output": "o"}
_ATOMS = frozenset({bool, int, float, str, type(None)})

# node.meta entries that AOTAutograd reads from Dynamo's nodes; a graph that has one is not sent yet.
_MEANINGFUL_META = (
    "recompute",
    "ac_graph_id",
    "steal_arg",
    "custom",
    "has_backward_hook",
    "is_wrapped",
    "user_cache_hash",
)


def is_plain(graph: torch.fx.Graph) -> bool:
    """Whether calling the graph is calling it with its placeholders: not for graphs of torch.export, with pytrees."""
    return type(graph._codegen) is torch.fx.graph.CodeGen


def encode(graph: torch.fx.Graph) -> list[list[Any]]:
    """The canonical form. Raises Bypass for whatever cannot be rebuilt to mean exactly the same."""
    index: dict[torch.fx.Node, int] = {}
    encoded: list[list[Any]] = []
    for position, node in enumerate(graph.nodes):
        index[node] = position
        encoded.append(_encode_node(node, index))
    return encoded


def _encode_node(node: torch.fx.Node, index: dict[torch.fx.Node, int]) -> list[Any]:
    if node.op == "placeholder":
        return ["p"]
    for name in _MEANINGFUL_META:
        if node.meta.get(name):
            raise Bypass(f"the node {node.name} is marked {name!r}", code="marked-node")
    if node.op == "get_attr":
        raise Bypass(f"the graph holds the tensor or module {node.target}", code="graph-attribute")
    code = _OPS.get(node.op)
    if code is None:
        raise Bypass(f"the graph has a node of kind {node.op}", code="unsupported-node")
    target: Any = None
    if code == "f":
        target = targets.encode(node.target)
    elif code == "m":
        target = node.target
    args = [_encode_argument(argument, index) for argument in node.args]
    kwargs = [[name, _encode_argument(value, index)] for name, value in node.kwargs.items()]
    return [code, target, args, kwargs]


def _encode_argument(argument: Any, index: dict[torch.fx.Node, int]) -> Any:
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
    raise Bypass(
        f"the graph has an argument of type {kind.__module__}.{kind.__qualname__}", code="unsupported-argument"
    )


def decode(encoded: list[list[Any]]) -> torch.fx.Graph:
    """The graph; placeholders are called ``arg0``, ``arg1``, ...

    Raises ValueError, TypeError, KeyError, IndexError, AttributeError or ImportError for what ``encode`` never gives.
    """
    graph = torch.fx.Graph()
    nodes: list[torch.fx.Node] = []
    placeholders = 0
    for code, *rest in encoded:
        if code == "p":
            nodes.append(graph.placeholder(f"arg{placeholders}"))
            placeholders += 1
            continue
        target, args, kwargs = rest
        decoded_args = tuple(_decode_argument(argument, nodes) for argument in args)
        decoded_kwargs = {name: _decode_argument(value, nodes) for name, value in kwargs}
        if code == "f":
            nodes.append(graph.call_function(targets.decode(target), decoded_args, decoded_kwargs))
        elif code == "m":
            nodes.append(graph.call_method(target, decoded_args, decoded_kwargs))
        elif code == "o":
            nodes.append(graph.create_node("output", "output", decoded_args, decoded_kwargs))
        else:
            raise ValueError(f"unknown kind of node {code!r}")
    return graph


def _decode_argument(argument: Any, nodes: list[torch.fx.Node]) -> Any:
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
