"""Trains one epoch with twelve sequence lengths, waits for all artifacts, and trains a second epoch.

Usage: python -m benchmarks.measures.lengths_program SPEC (a JSON object: ``seed`` of the order). Prints the counts of
the first epoch as a JSON line.
"""

from __future__ import annotations

import json
import random
import sys

import torch

import precompiled

LENGTHS = range(17, 101, 7)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(64, 32)
        self.layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.head = torch.nn.Linear(32, 64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores = self.head(self.layer(self.embedding(tokens)))
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def epoch(compiled: Model, model: Model, order: random.Random) -> dict[str, int]:
    lengths = list(LENGTHS)
    order.shuffle(lengths)
    for length in lengths:
        model.zero_grad()
        compiled(torch.randint(64, (4, length))).backward()
    graphs = precompiled.report()
    traced = [graph for graph in graphs if graph.source != "package"]
    return {"steps": len(lengths), "traced": len(traced), "eager": sum(graph.calls_eager for graph in graphs)}


def main() -> None:
    order = random.Random(json.loads(sys.argv[1])["seed"])
    torch.manual_seed(0)
    model = Model()
    compiled = torch.compile(model)
    first = epoch(compiled, model, order)
    precompiled.wait()
    epoch(compiled, model, order)
    print(json.dumps(first))


if __name__ == "__main__":
    main()
