"""Measures how long precompiled looks up one graph, or how long torch computes its cache key of the graph.

Usage: python -m benchmarks.measures.lookup_program SPEC. SPEC is a JSON object:
- ``placeholders``: the number of inputs of a graph of linear layers
- ``model`` and ``size``, instead of ``placeholders``: name a training graph of models/suite.py
- ``side``: "ours" (precompiled's lookup) or "torch's key"
- ``repeats``: number of repetitions in the same process

Prints one JSON line. Its field ``seconds`` lists the times of the first lookup and of each repetition.

precompiled's lookup and torch's key get the graph with fake tensors, as Dynamo passes it to a backend. The program
imports all needed parts of torch before it measures, so neither side's time includes an import of torch.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from torch._functorch._aot_autograd import autograd_cache
from torch._inductor.compile_fx import compile_fx

WIDTH = 8


class _Measured(BaseException):
    """Raised to end torch's compile right after the measurement. Not an Exception, because torch catches these."""


class _Layers(torch.nn.Module):
    """Takes ``placeholders`` inputs: the weight and the bias of each layer, and the tensor itself."""

    def __init__(self, placeholders: int) -> None:
        super().__init__()
        linears, rest = divmod(placeholders - 1, 2)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH) for _ in range(linears)])
        self.scales = torch.nn.ParameterList([torch.ones(WIDTH) for _ in range(rest)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        for scale in self.scales:
            x = x * scale
        return x


def ours(module: torch.fx.GraphModule, repeats: int) -> list[float]:
    """Return the seconds of lookups that find no artifact, with precompiled in mode `lookup`."""
    ends = []

    def in_process() -> Any:  # called right after a cache miss
        ends.append(time.perf_counter())
        return module.forward

    found = []
    for _ in range(1 + repeats):
        started = time.perf_counter()
        # Import the backend inside the measured time: with the hook, a process's first graph pays for the import.
        from precompiled import backend

        backend.compile_or_swap(module, {}, in_process)
        found.append(ends[-1] - started)
    import precompiled

    for graph in precompiled.report():
        if graph.reason != "lookup-only" or len(graph.key) != 64:
            raise SystemExit(f"a graph was not looked up: {graph}")
    return found


def torchs(module: torch.fx.GraphModule, inputs: list[Any], repeats: int) -> list[float]:
    """Return the seconds of AOTAutograd's key of the same graph, which torch computes with torch's own arguments."""
    found: list[float] = []
    key = autograd_cache.autograd_cache_key

    def timed(*args: Any, **kwargs: Any) -> Any:
        for _ in range(1 + repeats):
            started = time.perf_counter()
            key(*args, **kwargs)
            found.append(time.perf_counter() - started)
        raise _Measured

    autograd_cache.autograd_cache_key = timed
    try:
        compile_fx(module, inputs)
    except _Measured:
        pass
    finally:
        autograd_cache.autograd_cache_key = key
    return found


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    result: dict[str, Any] = {}

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        result["placeholders"] = sum(node.op == "placeholder" for node in module.graph.nodes)
        repeats = spec["repeats"]
        result["seconds"] = ours(module, repeats) if spec["side"] == "ours" else torchs(module, inputs, repeats)
        raise _Measured  # skip Dynamo's guards for 5,000 inputs; a lookup does not include them

    torch.manual_seed(0)
    if "model" in spec:
        from benchmarks.models import suite

        module, (inputs,) = suite.build(spec["model"], spec["size"], "training", "static")
    else:
        module, inputs = _Layers(spec["placeholders"]), {"x": torch.randn(2, WIDTH)}
    try:
        torch.compile(module, backend=backend)(**inputs)
    except _Measured:
        pass
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
