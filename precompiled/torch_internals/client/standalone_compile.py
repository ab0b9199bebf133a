"""Supports ``torch._inductor.standalone_compile``, which compiles a graph before its first call.

Torch calls the result of standalone_compile an artifact. The program may save this result. If a private name is
missing, the graph is compiled in process.

Private names: torch._inductor.compile_fx.graph_returns_tuple,
torch._inductor.standalone_compile.AOTCompiledArtifact, torch.fx.Node.meta["example_value"].
Checked on 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch.fx

from precompiled.core.errors import Bypass
from precompiled.torch_internals.client import relocate
from precompiled.torch_internals.user_code import program_classes

# The settings that standalone_compile has in addition to the settings of every compile (compile_graph.py).
SETTINGS = {"triton.autotune_at_compile_time": True}


def check_output(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph itself. Raises Bypass if the graph returns a tensor instead of a tuple."""
    from torch._inductor.compile_fx import graph_returns_tuple

    if not graph_returns_tuple(module):
        raise Bypass("the graph returns a tensor instead of a tuple", code="direct-call")
    return module


def of_inputs(module: torch.fx.GraphModule, inputs: Sequence[object]) -> torch.fx.GraphModule:
    """A copy of the graph with the metadata of ``inputs`` (fake tensors and numbers) instead of the metadata of
    Dynamo's trace.
    """
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    given = iter(inputs)
    for node in module.graph.nodes:
        copies[node] = made = graph.node_copy(node, copies.__getitem__)
        made.meta.pop("example_value", None)  # the entry has the sizes of Dynamo's trace
        if node.op == "placeholder":
            made.meta["example_value"] = next(given)
    copy = torch.fx.GraphModule(module, graph)
    copy.meta = dict(module.meta)
    return copy


def artifact(kept: SavedCallable) -> object:
    """The object that standalone_compile returns. ``kept``: a compiled callable that can be saved."""
    from torch._inductor.standalone_compile import AOTCompiledArtifact

    return AOTCompiledArtifact(kept)


class SavedCallable:
    """A compiled callable that torch can save, in the form of AOTAutograd's own result."""

    def __init__(
        self,
        function: Callable[..., object],
        bundle: bytes,
        classes: Mapping[str, type],
        device: str,
        groups: Sequence[str],
    ) -> None:
        """``bundle``: AOTAutograd's result, pickled by compile_graph.py.

        ``device``, ``groups``: the callable's device and process groups.
        """
        self._function, self._bundle, self._classes = function, bundle, dict(classes)
        self._device, self._groups = device, groups

    def __call__(self, *args: object) -> object:
        return self._function(*args)

    def serialize(self) -> object:
        bundle = program_classes.loads(self._bundle, self._classes)
        relocate.move(bundle, self._device, self._groups)
        return bundle
