"""Tests of the graph codec.

Graphs with every kind of argument survive the round trip through plain data, or are refused. A capture does not change
the caller's graph.
"""

from __future__ import annotations

import collections
import copy
import enum
import functools
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from support_graphs import captured, captures
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import graph_codec

X = torch.randn(4, 6)
IMAGE = torch.randn(2, 3, 8, 8)


def through_bytes(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    return graph_codec.decode(json.loads(json.dumps(graph_codec.encode(module))))


def _with_autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.T


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "node": (lambda x: torch.add(x, x), (X,)),
    "integer": (lambda x: x + 3, (X,)),
    "float": (lambda x: x * 0.1, (X,)),
    "large integer": (lambda x: x + 2**40, (X.long(),)),
    "infinity": (lambda x: x.masked_fill(x > 0, float("-inf")), (X,)),
    "bool and keywords": (lambda x: torch.sum(x, dim=1, keepdim=True), (X,)),
    "text": (lambda x: torch.einsum("ij,kj->ik", x, x), (X,)),
    "none": (lambda x: x[None], (X,)),
    "list": (lambda x: torch.cat([x, x], dim=1), (X,)),
    "tuple": (lambda x: x.permute((1, 0)), (X,)),
    "nested": (lambda x: F.pad(torch.stack([x, x]), (1, 2, 0, 1)), (X,)),
    "slice": (lambda x: x[1:3, ::2], (X,)),
    "ellipsis": (lambda x: x[..., 0], (X,)),
    "complex": (lambda x: x * (1 + 2j), (X,)),
    "dtype": (lambda x: x.to(torch.float64), (X,)),
    "device": (lambda x: x + torch.ones(6, device=torch.device("cpu")), (X,)),
    "layout": (lambda x: x + torch.zeros(6, layout=torch.strided), (X,)),
    "memory format": (lambda x: x.contiguous(memory_format=torch.channels_last) * 2, (IMAGE,)),
    "several results": (lambda x: (x.max(dim=1)[0], x + 1), (X,)),
    "method in place": (lambda x: x.clone().add_(1).mul_(2), (X,)),
    "boolean dispatch": (lambda x: F.max_pool2d(x, 2, stride=1), (IMAGE,)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), (IMAGE,)),
    "module made inside": (lambda x: torch.nn.ReLU()(x) + 1, (X,)),
    "two inputs": (lambda x, y: x - y, (X, torch.randn(4, 6))),
    "autocast": (_with_autocast, (X,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_captured_graph_survives_the_transfer_to_the_worker(name: str) -> None:
    function, inputs = FUNCTIONS[name]
    found = captured(function, *inputs)
    decoded = through_bytes(found.module)
    assert graph_codec.encode(decoded) == graph_codec.encode(found.module)
    torch.testing.assert_close(decoded(*found.inputs), found.module(*found.inputs), equal_nan=True)


def _checkpointed(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda y: y.sin() * 2, x, use_reentrant=False) + 1


def _either(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y - 1, (x,))


@pytest.mark.parametrize("function", [_checkpointed, _either])
def test_nested_graphs_are_encoded_too(function: Callable[..., Any]) -> None:
    found = captured(function, X)
    # On torch 2.11 a run of a checkpoint adds marks to the graph's nodes, so the test uses the bytes of the capture.
    encoded = json.loads(found.program.sections["graph"])
    assert len(encoded) > 1
    decoded = graph_codec.decode(encoded)
    assert graph_codec.encode(decoded) == encoded
    torch.testing.assert_close(decoded(*found.inputs), found.module(*found.inputs))


def test_checkpoint_with_a_local_context_function_is_refused() -> None:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts([torch.ops.aten.mm.default])

    with pytest.raises(Bypass) as refused:
        captured(lambda x: checkpoint(torch.sin, x, use_reentrant=False, context_fn=contexts), X)
    assert refused.value.code == "checkpoint-context"


def test_operators_that_a_checkpoint_saves_are_part_of_the_graph() -> None:
    def encoded(*operators: Any) -> Any:
        contexts = functools.partial(create_selective_checkpoint_contexts, list(operators))
        return json.loads(
            captured(
                lambda x: checkpoint(lambda y: (y @ y).sin(), x, use_reentrant=False, context_fn=contexts),
                torch.randn(4, 4, requires_grad=True),
            ).program.sections["graph"]
        )

    keeps = encoded(torch.ops.aten.mm.default)
    assert keeps != encoded(torch.ops.aten.sin.default)
    assert graph_codec.encode(graph_codec.decode(keeps)) == keeps


# Kinds of arguments that graphs may have, in addition to those in the functions above.
ARGUMENTS = [
    None,
    True,
    False,
    1,
    1.0,
    0,
    -0.0,
    0.0,
    "1",
    "",
    "\ud800",
    float("inf"),
    1j,
    [],
    (),
    [1],
    (1,),
    {},
    {"a": 1},
    {1: "a"},
    {"n": 0},
    {"a": {"b": (1, [2])}},
    slice(None),
    slice(1, None, 2),
    range(3),
    range(0, 3, 2),
    ...,
    torch.Size([2, 3]),
    torch.float32,
    torch.int64,
    torch.device("cpu"),
    torch.device("cuda", 0),
    torch.strided,
    torch.channels_last,
    torch.preserve_format,
    [[1, (2, {"k": slice(0, 1)})]],
]


def graph_with(argument: Any, target: Callable[..., Any] = torch.add) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output((graph.call_function(target, (graph.placeholder("x"), argument), {"key": argument}),))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def argument_of(module: torch.fx.GraphModule) -> Any:
    (node,) = (node for node in module.graph.nodes if node.op == "call_function")
    assert node.args[1] == node.kwargs["key"]
    return node.args[1]


@pytest.mark.parametrize("argument", ARGUMENTS, ids=repr)
def test_argument_survives_the_round_trip(argument: Any) -> None:
    module = graph_with(argument)
    decoded = through_bytes(module)
    assert graph_codec.encode(decoded) == graph_codec.encode(module)
    before, after = argument_of(module), argument_of(decoded)
    assert repr(after) == repr(before)
    assert type(after) is type(before)


def test_different_arguments_have_different_bytes() -> None:
    texts = [json.dumps(graph_codec.encode(graph_with(argument))) for argument in ARGUMENTS]
    assert len(set(texts)) == len(ARGUMENTS)


def test_nan_survives_the_round_trip() -> None:
    assert math.isnan(argument_of_nan(through_bytes(graph_with(float("nan")))))


def argument_of_nan(module: torch.fx.GraphModule) -> Any:
    return next(node for node in module.graph.nodes if node.op == "call_function").args[1]


class Colour(enum.IntEnum):
    RED = 1


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize("argument", [Colour.RED, Pair(1, 2), b"bytes", {1, 2}, torch.finfo(torch.float32)], ids=repr)
def test_unsupported_arguments_are_refused(argument: Any) -> None:
    graph = torch.fx.Graph()
    node = graph.call_function(torch.add, (graph.placeholder("x"), 1))
    node._args = (node.args[0], argument)  # the setter of ``args`` would refuse some of these
    graph.output((node,))
    with pytest.raises(Bypass) as refused:
        graph_codec.encode(torch.fx.GraphModule(torch.nn.Module(), graph))
    assert refused.value.code == "unsupported-argument"


def test_the_order_of_keywords_is_kept() -> None:
    graph = torch.fx.Graph()
    graph.output((graph.call_function(torch.sum, (graph.placeholder("x"),), {"keepdim": True, "dim": 0}),))
    decoded = through_bytes(torch.fx.GraphModule(torch.nn.Module(), graph))
    (node,) = (node for node in decoded.graph.nodes if node.op == "call_function")
    assert list(node.kwargs) == ["keepdim", "dim"]


def test_held_tensor_is_refused() -> None:
    class Holding(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.held

    root = Holding()
    root.held = torch.ones(2)
    with pytest.raises(Bypass) as refused:
        graph_codec.encode(torch.fx.symbolic_trace(root))
    assert refused.value.code == "graph-attribute"


def test_a_called_module_is_refused() -> None:
    module = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU()))
    with pytest.raises(Bypass) as refused:
        graph_codec.encode(module)
    assert refused.value.code == "unsupported-node"


def test_annotation_is_part_of_the_graph() -> None:
    plain, annotated = graph_with(1), graph_with(1)
    next(n for n in annotated.graph.nodes if n.op == "call_function").meta["custom"] = {"fallback_to_eager": True}
    assert graph_codec.encode(plain) != graph_codec.encode(annotated)
    marks = [node.meta.get("custom") for node in through_bytes(annotated).graph.nodes]
    assert {"fallback_to_eager": True} in marks


@pytest.mark.parametrize("mark", ["recompute", "ac_graph_id", "steal_arg", "has_backward_hook"])
def test_node_with_a_mark_that_changes_the_compile_is_refused(mark: str) -> None:
    module = graph_with(1)
    next(node for node in module.graph.nodes if node.op == "call_function").meta[mark] = {"x": 1}
    with pytest.raises(Bypass) as refused:
        graph_codec.encode(module)
    assert refused.value.code == "marked-node"


@pytest.mark.parametrize(
    "graph",
    [
        [["z", None, [], []]],
        [["p"], ["f", ["fn", "os", "system"], ["true"], []]],
        [["p"], ["f", ["fn", "torch", "no_such_function"], [], []]],
        [["p"], ["f", ["fn", "torch.no_such_module", "f"], [], []]],
        [["p"], ["f", ["op", "aten", "no_such_op"], [], []]],
        [["p"], ["f", ["pickle", "x"], [], []]],
        [["p"], ["f", ["fn", "torch", "add"], [{"n": 7}], []]],
        [["p"], ["f", ["fn", "torch", "add"], [{"q": 7}], []]],
        [["p"], ["f", ["fn", "torch", "add"], [{"x": ["module", "load"]}], []]],
        [["p"], ["f", ["fn", "torch", "add"]]],
        [["p"], 7],
        [["g", 0]],
    ],
)
def test_malformed_graph_raises_one_of_the_expected_exceptions(graph: list[Any]) -> None:
    # precompiled/compiler/graph_jobs.py reports these exceptions as "undecodable-graph".
    with pytest.raises((ValueError, TypeError, KeyError, IndexError, AttributeError, ImportError)):
        graph_codec.decode([graph])


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.linear(x) * self.scale, 0.5, self.training).relu()


def test_capture_leaves_the_graph_of_the_caller_unchanged() -> None:
    def look(module: torch.fx.GraphModule) -> tuple[Any, ...]:
        nodes = [(node.name, node.op, str(node.target), str(node.args), dict(node.meta)) for node in module.graph.nodes]
        names = copy.copy(module.graph._graph_namespace._used_names)
        return module.code, str(module.graph), nodes, sorted(names), sorted(vars(module)), dict(module.meta)

    seen = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        from precompiled.graph import capture

        before = look(module)
        program = capture.capture(module, {})
        program.to_bytes()
        after = look(module)
        seen.append(True)
        for left, right in zip(before, after, strict=True):
            assert _same(left, right)
        return module.forward

    torch._dynamo.reset()
    torch.compile(Net(), backend=backend)(X)
    assert seen


def _same(left: Any, right: Any) -> bool:
    """Returns whether two values are equal. Tensors must be identical, because == on tensors returns a tensor."""
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(_same(left[key], right[key]) for key in left)
    return left is right or (not isinstance(left, torch.Tensor) and left == right)


def test_captured_program_contains_no_weights() -> None:
    net = Net()
    with torch.no_grad():
        net.linear.weight.fill_(1234.5678)
    (found,) = captures(net, X)
    assert len(found.program.to_bytes()) < 100_000
    assert b"1234.5" not in found.program.to_bytes()
