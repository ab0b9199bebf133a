"""Runs a model's steps in turns, compiled in several ways.

Usage: python -m benchmarks.measures.variants_program SPEC (as for models/program.py). ``variants`` of SPEC names some
of VARIANTS. Prints a JSON line that maps each variant to the seconds of its first step (``first``) and later steps.
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
# Maps a variant to ``dynamic`` of torch.compile, and to changes of Inductor's configuration.
VARIANTS: dict[str, tuple[bool, dict[str, Any]]] = {
    "literals": (False, {}),  # kernels have the sizes as literals
    "arguments": (True, {}),  # kernels have the sizes as arguments
    "autotuned": (False, {"max_autotune": True}),  # mode="max-autotune" on the CPU
}


def main() -> None:
    spec = json.loads(sys.argv[1])
    program = Program(spec)
    inputs = program.inputs[0]
    functions = {name: compiled(program.model, *VARIANTS[name]) for name in spec["variants"]}
    first: dict[str, float] = {}
    later: dict[str, list[float]] = {name: [] for name in functions}
    for pair in range(WARM_UP + PAIRS):
        for name, function in sorted(functions.items(), reverse=bool(pair % 2)):
            started = time.monotonic()
            program.run(function, inputs)
            seconds = time.monotonic() - started
            first.setdefault(name, seconds)
            if pair >= WARM_UP:
                later[name].append(seconds)
    print(json.dumps({"first": first, **later}), flush=True)


def compiled(model: torch.nn.Module, dynamic: bool, changes: dict[str, Any]) -> Callable[..., Any]:
    """Compile the model with a backend of its own, because functions with equal backends share their compiled code."""

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        found: Callable[..., Any] = compile_fx(graph, inputs, config_patches=changes)
        return found

    return torch.compile(model, backend=backend, dynamic=dynamic)


if __name__ == "__main__":
    main()
