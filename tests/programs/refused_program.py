"""A program that torch refuses to compile. Prints one line of JSON: the exception of each of three calls."""

from __future__ import annotations

import json
import warnings

import torch

import precompiled


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return torch.mul(x, y).sin() * self.seen


warnings.filterwarnings("error", category=RuntimeWarning, module="precompiled")  # as many test suites do
precompiled.enable()
module = Counting()
compiled = torch.compile(lambda x, y: module(x, y) + module(x, y), fullgraph=True)
x, y = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
said = []
for _ in range(3):
    try:
        compiled(x, y)
        said.append("")
    except Exception as error:
        words = str(error).partition("Set TORCHDYNAMO")[0].strip()  # without the hint that Dynamo adds
        said.append(f"{type(error).__module__}.{type(error).__name__}: {words}")
    precompiled.wait(300)
print(json.dumps([said, [[graph.state, graph.source, graph.reason] for graph in precompiled.report()]]))
