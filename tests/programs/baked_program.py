"""A small training program as a user writes it. Prints a report at its end, as one line of JSON.

Usage: baked_program.py [STEPS]. STEPS is 3 by default. With 0 steps, the program does not end. With "until-compiled",
the program runs at least three steps. One compiled function (``score``) has symbolic sizes.
"""

from __future__ import annotations

import json
import os
import sys

import torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@torch.compile(dynamic=True)
def score(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean(-1)


def main() -> None:
    import precompiled

    torch.manual_seed(0)
    net = Net()
    compiled = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    wanted = (sys.argv[1:] or ["3"])[0]
    until_compiled = wanted == "until-compiled"
    steps, done, losses = 0 if until_compiled else int(wanted), 0, []
    while not steps or done < steps:
        x = torch.randn(8, 16)
        loss = score(compiled(x)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        done += 1
        if until_compiled and done >= 3 and all(graph.state != "pending" for graph in precompiled.report()):
            break

    print(
        json.dumps(
            {
                "uid": os.geteuid(),
                "losses": losses[:3],
                "graphs": [[graph.state, graph.source, graph.reason] for graph in precompiled.report()],
                "frames": [[frame.state, frame.reason, *frame.reasons] for frame in precompiled.package_report()],
                "traced": dict(torch._dynamo.utils.counters["frames"]),
                "compiles": torch._dynamo.utils.counters["aot_autograd"]["total"],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
