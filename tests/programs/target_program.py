"""A small training program for a GPU, with products of odd sizes, dropout, a reduction, and symbolic sizes.

Usage: target_program.py STEPS. With 0 steps the program does not end. Prints one line of JSON: the results, and how the
graphs were served.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.system", "os.exec"})


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(65, 131), torch.nn.GELU(), torch.nn.LayerNorm(131))
        self.head = torch.nn.Linear(131, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.nn.functional.dropout(self.layers(x), 0.1))


@torch.compile(dynamic=True)
def score(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1).square().mean(-1)


def main() -> None:
    started: list[str] = []
    sys.addaudithook(lambda event, args: started.append(f"{event} {args[:2]}") if event in STARTS else None)
    torch.manual_seed(0)
    net = Net().cuda()
    compiled = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    steps, done, losses = int(sys.argv[1]), 0, []
    while not steps or done < steps:
        x = torch.randn(32, 65, device="cuda")
        loss = score(compiled(x)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        done += 1

    import precompiled

    print(
        json.dumps(
            {
                "gpu": torch.cuda.get_device_name(),
                "losses": losses,
                "keys": [graph.key for graph in precompiled.report()],
                "graphs": [[graph.state, graph.source, graph.reason] for graph in precompiled.report()],
                "traced": dict(torch._dynamo.utils.counters["frames"]),
                "compiles": torch._dynamo.utils.counters["aot_autograd"]["total"],
                "started": started,
                "cubins": {
                    str(path.parent.name): path.read_bytes().hex()
                    for path in Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")
                }
                if "CUBINS" in os.environ
                else {},
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
