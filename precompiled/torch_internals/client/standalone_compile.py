"""Graphs that a program compiles by itself, ahead of their calls, as ``torch._inductor.standalone_compile`` takes them;
and what torch calls an artifact, which the program may write down.

Private names: torch._inductor.compile_fx.graph_returns_tuple,
torch._inductor.standalone_compile.AOTCompiledArtifact, torch.fx.Node.meta["example_value"].
Checked on 2.13.0. Where one is missing, such a graph is compiled in process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx

from precompiled.core.errors import Bypass
from precompiled.torch_internals.client import relocate
from precompiled.torch_internals.user_code import program_classes

# What standalone_compile sets around a compile, besides what an artifact is compiled with anyway (compile_graph.py).
SETTINGS = {"triton.autotune_at_compile_time": True}


def checked(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph, which gives its outputs as a tuple. Raises Bypass for one that gives a tensor."""
    from torch._inductor.compile_fx import graph_returns_tuple

    if not graph_returns_tuple(module):
        raise Bypass("a graph that is compiled by itself gives one tensor, and no tuple", code="direct-call")
    return module


def of_inputs(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.fx.GraphModule:
    """A copy of the graph for these inputs, fake tensors and numbers, in place of those that Dynamo saw."""
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    given = iter(inputs)
    for node in module.graph.nodes:
        copies[node] = made = graph.node_copy(node, copies.__getitem__)
        made.meta.pop("example_value", None)  # of the sizes that Dynamo saw
        if node.op == "placeholder":
            made.meta["example_value"] = next(given)
    copy = torch.fx.GraphModule(module, graph)
    copy.meta = dict(module.meta)
    return copy


def artifact(kept: Kept) -> Any:
    """What standalone_compile gives where its result is to be kept."""
    from torch._inductor.standalone_compile import AOTCompiledArtifact

    return AOTCompiledArtifact(kept)


class Kept:
    """A compiled callable that torch can write down: as AOTAutograd's result, as it would have it without us."""

    def __init__(
        self, function: Callable[..., Any], bundle: bytes, classes: Mapping[str, type], device: str,
        groups: Sequence[str],
    ) -> None:  # fmt: skip
        """``bundle``: that result, pickled, as compile_graph.py makes it. ``device``, ``groups``: the callable's."""
        self._function, self._bundle, self._classes = function, bundle, dict(classes)
        self._device, self._groups = device, groups

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def serialize(self) -> Any:
        bundle = program_classes.loads(self._bundle, self._classes)
        relocate.move(bundle, self._device, self._groups)
        return bundle
