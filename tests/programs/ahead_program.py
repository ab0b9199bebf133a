"""A program whose backend compiles a graph ahead of its calls, for all sizes and for one size, as vLLM does.

Usage: ahead_program.py FILE [WAY]. Writes the compiled code to FILE, loads it again, and compares all results with
eager. Prints JSON: the reports of the graphs. WAY is one of:

- "refused": the graph cannot be captured
- "guarded": the graph has size guards
- "load": do not compile; load FILE, which an earlier run has written
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor.standalone_compile import AOTCompiledArtifact
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import precompiled
from precompiled import backend
from precompiled.core.errors import Bypass
from precompiled.torch_internals.client import standalone_compile

WEIGHT = torch.randn(8, 8)
SIZES = (3, 4, 17)


def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight).sin() * x.shape[0]


def halves(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if x.shape[0] % 2:
        return layer(x, weight)
    return layer(x.reshape(-1, 2, 8).sum(1), weight)


def of_one_size(fakes: list[Any], size: int) -> list[Any]:
    """Returns inputs like ``fakes``, with ``size`` in place of the changing size."""
    with FakeTensorMode(shape_env=ShapeEnv()):
        return [
            torch.empty([size if isinstance(n, torch.SymInt) else n for n in value.shape])
            if isinstance(value, torch.Tensor)
            else size
            for value in fakes
        ]


def main(file: Path, way: str) -> None:
    made: dict[str, Any] = {}
    in_process: list[str] = []

    def compile_ahead(module: torch.fx.GraphModule, inputs: list[Any], name: str) -> Callable[..., Any]:
        def prepared() -> Any:
            if way == "refused":
                raise Bypass("it is unknown what this graph is compiled with", code="vllm-context")
            return standalone_compile.of_inputs(module, inputs), dict(standalone_compile.SETTINGS)

        def left() -> Any:
            in_process.append(name)
            return module.forward

        made[name] = backend.compile_ahead(module, prepared, left, standalone_compile.artifact, written_down=True)
        return made[name]

    def cut(module: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        fakes = [node.meta["example_value"] for node in module.graph.nodes if node.op == "placeholder"]
        all_sizes = compile_ahead(module, fakes, "all")
        four = compile_ahead(module, of_one_size(fakes, 4), "four")
        at = next(position for position, value in enumerate(fakes) if isinstance(value, torch.SymInt))
        return lambda *args: (four if args[at] == 4 else all_sizes)(*args)

    if way == "load":
        made = {name: AOTCompiledArtifact.deserialize(data) for name, data in pickle.loads(file.read_bytes()).items()}
    else:
        function = halves if way == "guarded" else layer
        compiled = torch.compile(function, backend=cut, fullgraph=True)
        for size in SIZES[1:2] if way == "guarded" else SIZES:
            x = torch.randn(size, 8)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x, WEIGHT), function(x, WEIGHT))
        if not in_process:
            file.write_bytes(pickle.dumps({name: found.serialize() for name, found in made.items()}))
    for name, found in made.items() if not in_process else ():
        again = AOTCompiledArtifact.deserialize(found.serialize())
        for size in (4,) if name == "four" else SIZES:
            x = torch.randn(size, 8)
            # Dynamo's order of inputs: first a size, then the tensor that has the size.
            torch.testing.assert_close(again(size, x, WEIGHT)[0], layer(x, WEIGHT))
    reports = [[graph.state, graph.source, graph.reason, graph.calls_eager] for graph in precompiled.report()]
    print(json.dumps({"graphs": reports, "in_process": in_process}))


if __name__ == "__main__":
    with torch.no_grad():
        main(Path(sys.argv[1]), "".join(sys.argv[2:]))
