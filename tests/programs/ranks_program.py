"""One rank of several (gloo) that computes a case twice, eager and compiled under the hook, and compares the two.

Usage: ranks_program.py SPEC, a JSON object: case, rank, ranks, rendezvous (a file), and spare: how many groups to make
before all others. Prints a JSON object with the reports.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from leaving import leave

import precompiled

# What a case does, with a function that compiles or gives back what it is given: tensors that must be equal.
Case = Callable[[Callable[[Any], Any]], list[torch.Tensor]]


def halves() -> dist.ProcessGroup:
    """The half of the ranks that this one is in."""
    ranks = dist.get_world_size()
    parts = [list(range(ranks // 2)), list(range(ranks // 2, ranks))]
    groups = [dist.new_group(part) for part in parts]
    found: dist.ProcessGroup = groups[dist.get_rank() // (ranks // 2)]
    return found


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(dist.get_rank())
    return [torch.randn(*shape, requires_grad=True) for shape in shapes]


def with_gradients(output: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [output, *torch.autograd.grad(output.square().sum(), inputs)]


def one_group(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    group = halves()

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        gathered = collectives.all_gather_tensor_autograd(x @ w, 0, group)
        reduced = collectives.reduce_scatter_tensor_autograd(gathered.sin(), "sum", 0, group)
        return reduced * collectives.all_reduce(x.detach(), "sum", group)

    inputs = leaves((4, 6), (6, 6))
    return with_gradients(compiled(function)(*inputs), inputs)


def several_groups(compiled: Callable[[Any], Any]) -> list[torch.Tensor]:
    """The world, a half, and another group of the same ranks, which stays another."""
    first, second = halves(), halves()

    def function(x: torch.Tensor) -> torch.Tensor:
        x = collectives.all_gather_tensor_autograd(x, 0, second).relu()
        x = collectives.all_gather_tensor_autograd(x, 0, dist.group.WORLD).sin()
        return collectives.reduce_scatter_tensor_autograd(x, "sum", 0, first).cos()

    inputs = leaves((4, 6))
    return with_gradients(compiled(function)(*inputs), inputs)


CASES: dict[str, Case] = {case.__name__: case for case in (one_group, several_groups)}


def main() -> None:
    spec = json.loads(sys.argv[1])
    file = f"file://{spec['rendezvous']}"
    dist.init_process_group("gloo", init_method=file, rank=spec["rank"], world_size=spec["ranks"])
    for _ in range(spec.get("spare", 0)):
        dist.new_group()
    case = CASES[spec["case"]]
    expected = case(lambda function: function)
    precompiled.enable()
    for _ in range(2):
        found = case(torch.compile)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        assert precompiled.wait(300)
        dist.barrier()
    reports = [[graph.state, graph.source, graph.reason, graph.key] for graph in precompiled.report()]
    messages = [graph.message for graph in precompiled.report() if graph.state != "compiled"]
    print(json.dumps({"reports": reports, "messages": messages}), flush=True)
    leave()


if __name__ == "__main__":
    main()
