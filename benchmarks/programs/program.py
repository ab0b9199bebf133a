"""The process that runs one program of the table: its steps, and what precompiled says of them.

Usage: python -m benchmarks.programs.program SPEC, a JSON object: ``name``; ``values``, the file for what each step
gave; ``wait_s``, how long to wait after a step for graphs that are pending; ``eager_steps``, how many steps run eager
before torch.compile has an effect. Prints a line of JSON. precompiled is switched on from outside, if at all.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import torch
import torch._inductor.compile_fx  # as the first call of torch.compile does, in all ways: two thirds of a small step
from torch._dynamo.utils import counters

import precompiled
from benchmarks.programs import PROGRAMS
from precompiled.client.process import PROCESS


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    torch.manual_seed(0)
    values: list[Any] = []
    seconds = []
    waited = True
    torch.compiler.set_stance("force_eager" if spec["eager_steps"] else "default")
    compiles = _noted_compiles()
    started = time.perf_counter()
    for step in PROGRAMS[spec["name"]].steps():
        ended = time.perf_counter()
        seconds.append(ended - started)
        if len(seconds) == 1:
            first_s = ended - min(compiles, default=started)
        values.append(dict(step))
        waited = waited and precompiled.wait(spec["wait_s"])
        if len(values) == spec["eager_steps"]:
            torch.compiler.set_stance("default")
        started = time.perf_counter()
    torch.save(values, spec["values"])
    if PROCESS.packages is not None:
        PROCESS.packages.flush()
    found = {
        "seconds": seconds,
        "first_s": first_s,  # the first step since torch.compile was first called: imports and a model come before
        "waited": waited,
        "traced": counters["frames"].get("total", 0),  # frames, by Dynamo's own count
        "reports": [vars(graph) for graph in precompiled.report()],
        "functions": [asdict(report) for report in precompiled.package_report()],
    }
    print(json.dumps(found), flush=True)


def _noted_compiles() -> list[float]:
    """When torch.compile is called, from now on."""
    compile, calls = torch.compile, []

    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(time.perf_counter())
        return compile(*args, **kwargs)

    torch.compile = noted
    return calls


if __name__ == "__main__":
    main()
