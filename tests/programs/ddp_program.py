"""One of two ranks that train a compiled model with DistributedDataParallel over gloo.

Usage: ddp_program.py RANK FILE. Prints a JSON object with the reports. DDPOptimizer splits the graph at the boundaries
of the gradient buckets, so that ranks exchange gradients during the backward. Each part is a separate graph.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from leaving import leave
from torch.nn.parallel import DistributedDataParallel

import precompiled


class Model(torch.nn.Module):
    """A class of the program is necessary, because Dynamo does not start at torch's own frames (Sequential.forward)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def main() -> None:
    rank, file = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    torch.manual_seed(0)
    # Each layer has 1 MiB. With this limit a bucket has one or two layers, so the model is split into several graphs.
    model = DistributedDataParallel(Model(), bucket_cap_mb=1)
    torch.manual_seed(rank)
    x = torch.randn(4, 512)

    def gradients(function: torch.nn.Module) -> list[torch.Tensor]:
        model.zero_grad(set_to_none=True)
        function(x).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradients(model)
    precompiled.enable()
    compiled = torch.compile(model)
    for _ in range(2):
        for left, right in zip(gradients(compiled), expected, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)
        assert precompiled.wait(300)
        dist.barrier()
    reports = [[graph.state, graph.source, graph.reason, graph.key] for graph in precompiled.report()]
    compiles = torch._dynamo.utils.counters["aot_autograd"]["total"]
    print(json.dumps({"reports": reports, "compiles": compiles}), flush=True)
    leave()


if __name__ == "__main__":
    main()
