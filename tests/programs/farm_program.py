"""A program with several different graphs, which are pending at the same time. Prints one line of JSON.

Usage: farm_program.py GRAPHS [SEED]. The program runs all graphs eager, waits for their artifacts, and runs them again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch

import precompiled

STEPS = ("sin", "cos", "tanh", "sigmoid", "exp", "erf", "relu", "square")


def function(number: int, seed: int) -> Callable[..., torch.Tensor]:
    names = [STEPS[(number + step * (seed + 1)) % len(STEPS)] for step in range(3 + number)]

    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = torch.sigmoid(getattr(torch, name)(x) + y)
        return (x @ y).softmax(-1).sum(0)

    return call


def main(count: int, seed: int) -> None:
    torch._dynamo.config.recompile_limit = 10 * count
    torch.manual_seed(0)
    x, y = torch.randn(16, 16), torch.randn(16, 16)
    plain = [function(number, seed) for number in range(count)]
    compiled = [torch.compile(call, dynamic=False) for call in plain]
    first = [call(x, y) for call in compiled]
    print("@submitted", flush=True)
    done = precompiled.wait(300.0)
    last = [call(x, y) for call in compiled]
    for call, before, after in zip(plain, first, last, strict=True):
        torch.testing.assert_close(before, call(x, y))
        torch.testing.assert_close(after, call(x, y))
    print(
        json.dumps(
            {
                "done": done,
                "graphs": [[graph.state, graph.source, graph.key] for graph in precompiled.report()],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
