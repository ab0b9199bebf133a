"""Runs a model's steps in turns: with kernels whose sizes are literals, and with kernels whose sizes are arguments.

Usage: python -m benchmarks.measures.size_arguments_program SPEC (as for models/program.py). Prints a JSON line with the
seconds of the steps of both kinds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.compile_fx import compile_fx

from benchmarks.models.program import Program

WARM_UP, PAIRS = 2, 12


def main() -> None:
    program = Program(json.loads(sys.argv[1]))
    inputs = program.inputs[0]
    functions = {name: compiled(program.model, dynamic=name == "arguments") for name in ("literals", "arguments")}
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for pair in range(WARM_UP + PAIRS):
        for name, function in sorted(functions.items(), reverse=bool(pair % 2)):
            started = time.monotonic()
            program.run(function, inputs)
            if pair >= WARM_UP:
                seconds[name].append(time.monotonic() - started)
    print(json.dumps(seconds), flush=True)


def compiled(model: torch.nn.Module, *, dynamic: bool) -> Callable[..., Any]:
    """Compile the model with a backend of its own, because functions with equal backends share their compiled code."""

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        found: Callable[..., Any] = compile_fx(graph, inputs)
        return found

    return torch.compile(model, backend=backend, dynamic=dynamic)


if __name__ == "__main__":
    main()
