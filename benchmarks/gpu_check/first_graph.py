"""Checks one training graph on the GPU: miss, eager, swap, and a hit in a second process.

Usage: python -m benchmarks.gpu_check.first_graph RESULT [--made-up]. RESULT: the JSON file to write. The first process
and plain torch.compile are compared with eager code. On a made-up device, no kernel runs, so values are not compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.hosts import Host, fresh_host

LARGEST_ERROR = 1e-4
WAIT_S = 60.0


def _program(*, ours: bool) -> dict[str, Any]:
    """Run in a process of its own: train one step eager and several compiled. Return how the graphs were served."""
    import torch

    import precompiled

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256)).cuda()
    x = torch.randn(32, 64, device="cuda")

    def step(run: torch.nn.Module) -> list[torch.Tensor]:
        model.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        return [loss.detach().clone(), *(parameter.grad.clone() for parameter in model.parameters())]

    expected, compiled = step(model), torch.compile(model)
    first = step(compiled)
    if ours:
        precompiled.wait(WAIT_S)
    last = step(compiled)
    error = max(float((one - two).abs().max()) for got in (first, last) for one, two in zip(got, expected, strict=True))
    reports = [[graph.state, graph.source, graph.calls_eager] for graph in precompiled.report()]
    memory = torch.cuda.get_device_properties(0).total_memory
    name, capability = torch.cuda.get_device_name(0), list(torch.cuda.get_device_capability(0))
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]}
    return {"error": error, "reports": reports, "gpu": name, "capability": capability, "memory": memory, **versions}


def _run(host: Host, *, ours: bool) -> dict[str, Any]:
    return host.run({"ours": ours}, hook=ours, program="gpu_check.first_graph")


def _doctor(host: Host) -> list[Any]:
    command = host.precompiled("doctor", "--json")
    # Its exit status is 1 if a check failed.
    done = subprocess.run(command["argv"], env=command["env"], stdout=subprocess.PIPE, check=False, timeout=WAIT_S)
    checks = json.loads(done.stdout)
    return [[check["check"], check["state"], check["message"]] for check in checks if check["state"] != "ok"]


def _check(*, made_up: bool) -> list[list[str]]:
    with fresh_host() as host:
        host.start_daemon()
        first, second = _run(host, ours=True), _run(host, ours=True)
        problems = _doctor(host)
        host.stop_daemon()
    with fresh_host() as host:
        plain = _run(host, ours=False)
    served = first["reports"] == [["compiled", "swap", 1]] and second["reports"] == [["compiled", "hit", 0]]
    rows = [
        ["GPU", f"{first['gpu']}, sm_{''.join(map(str, first['capability']))}, {first['memory'] / 2**30:.0f} GiB"],
        ["versions", f"torch {first['torch']}, CUDA {first['cuda']}, Python {first['python']}"],
        *([f"doctor: {name} ({state})", message] for name, state, message in problems),
        ["miss, eager, swap; then a hit", "passed" if served else f"FAILED: {first['reports']}, {second['reports']}"],
    ]
    for name, found in (("first process", first), ("second process", second), ("plain torch.compile", plain)):
        verdict = "not compared (made-up device)" if made_up else _verdict(found["error"])
        rows.append([f"largest error from eager: {name}", verdict])
    return rows


def _verdict(error: float) -> str:
    return f"{error:.1e}" if error <= LARGEST_ERROR else f"FAILED: {error:.1e}"


def main() -> int:
    if sys.argv[1].startswith("{"):
        print(json.dumps(_program(ours=json.loads(sys.argv[1])["ours"])))
        return 0
    rows = _check(made_up="--made-up" in sys.argv)
    Path(sys.argv[1]).write_text(json.dumps({"rows": rows}))
    return int(any(said.startswith("FAILED") for _, said in rows))


if __name__ == "__main__":
    raise SystemExit(main())
