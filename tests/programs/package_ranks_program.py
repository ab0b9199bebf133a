"""One of several ranks over gloo. The rank runs compiled functions whose traces depend on ranks and groups.

Usage: package_ranks_program.py SPEC. SPEC is a JSON object: rank, ranks, rendezvous (a file), and order (the order in
which the ranks create their own groups). Prints a JSON object: whether all results equal eager's, what Dynamo traced,
and the reports.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from leaving import leave
from torch.nn.parallel import DistributedDataParallel

import precompiled


class Model(torch.nn.Module):
    """A model whose layers have 1 MiB each. With buckets of 1 MiB, DDP splits Dynamo's graph into several."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def constants(x: torch.Tensor) -> torch.Tensor:
    return x * (dist.get_rank() + 1) + dist.get_world_size()


def summed(x: torch.Tensor) -> torch.Tensor:
    return collectives.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def alone(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    return collectives.all_reduce(x * 3, "sum", group) - 1


def main() -> None:
    spec = json.loads(sys.argv[1])
    rank = spec["rank"]
    file = f"file://{spec['rendezvous']}"
    dist.init_process_group("gloo", init_method=file, rank=rank, world_size=spec["ranks"])
    groups = {member: dist.new_group([member]) for member in spec["order"]}
    precompiled.enable()
    x = torch.arange(4.0) + rank
    equal = [
        torch.equal(torch.compile(function)(x, *more), function(x, *more))
        for function, more in ((constants, ()), (summed, ()), (alone, (groups[rank],)))
    ]
    torch.manual_seed(0)
    model = DistributedDataParallel(Model(), bucket_cap_mb=1)
    gradients = []
    for function in (model, torch.compile(model)):
        model.zero_grad(set_to_none=True)
        function(torch.full((4, 512), rank + 1.0)).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    equal += [torch.allclose(*pair, rtol=1e-3, atol=1e-5) for pair in zip(*gradients, strict=True)]
    found = {
        "equal": all(equal),
        "traced": torch._dynamo.utils.counters["frames"].get("total", 0),
        "sources": [report.source for report in precompiled.report()],
        "functions": [[r.name.rpartition(".")[2], r.state, r.reason] for r in precompiled.package_report()],
        "reasons": [reason for report in precompiled.package_report() for reason in report.reasons],
    }
    print(json.dumps(found), flush=True)
    leave()


if __name__ == "__main__":
    main()
