"""A program with equal layers. The program steps until its whole graph is compiled, and compares each step with an
eager one.

Arguments: the number of layers, and optionally "deterministic", to ask torch for deterministic algorithms. Prints how
its steps ran, in order: "eager", "pieces", "whole".
"""

from __future__ import annotations

import json
import sys

import torch

import precompiled


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48), torch.nn.Linear(48, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.gelu(self.up(self.norm(x)))
        y = torch.sin(y) * torch.sigmoid(y) + torch.cos(y) - torch.tanh(y).clamp(min=-0.5)
        return x + self.down(y)


class Model(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 16)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(count))
        self.head = torch.nn.Linear(16, 32)

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def step(run: torch.nn.Module, model: Model, tokens: torch.Tensor) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    handle = model.layers[0].up.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    model.zero_grad()
    loss = run(model.embedding(tokens), tokens)  # an input with a history, as after a graph break
    loss.backward()
    handle.remove()
    (hooked,) = seen
    return [loss.detach().clone(), hooked, *(parameter.grad.clone() for parameter in model.parameters())]


def way(report: precompiled.GraphReport, compiled_before: int) -> str:
    if report.calls_compiled == compiled_before:
        return "eager"
    return "pieces" if report.state == "pending" else "whole"


def main() -> None:
    precompiled.enable()
    torch.manual_seed(0)
    torch.use_deterministic_algorithms("deterministic" in sys.argv)
    model = Model(int(sys.argv[1]))
    tokens = torch.randint(0, 32, (2, 8))
    expected = step(model, model, tokens)
    compiled = torch.compile(model)
    ways: list[str] = []
    done = False
    while not done:
        reports = precompiled.report()
        before = reports[0].calls_compiled if reports else 0
        state = reports[0].state if reports else "pending"
        actual = step(compiled, model, tokens)
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
        report = precompiled.report()[0]
        if state == report.state:  # otherwise the swap came during this step
            ways.append(way(report, before))
        done = report.state in ("compiled", "failed") and "whole" in ways
    print(json.dumps({"ways": list(dict.fromkeys(ways)), "first": ways[0], "message": report.message}))


if __name__ == "__main__":
    main()
