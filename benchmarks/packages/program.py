"""One architecture in a process of its own: eager, then compiled, and what Dynamo and packages did meanwhile.

Usage: python -m benchmarks.packages.program NAME TASK. Prints a line of JSON. precompiled is switched on from outside.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Any

import torch
import transformers
from torch._dynamo.utils import counters

import precompiled
from benchmarks.architectures.program import step
from benchmarks.models.compare import differences
from benchmarks.models.zoo import ARCHITECTURES
from precompiled.client.process import PROCESS

STEPS = 2  # the second call must be served as well, without a recompile


def main() -> None:
    name, task = sys.argv[1:3]
    training = task == "training"
    transformers.utils.logging.set_verbosity_error()
    example = ARCHITECTURES[name].build()
    model = example.model.train(training)
    inputs = {**example.inputs, **(example.targets if training else {})}
    expected = step(model, model, inputs, training)
    compiled = torch.compile(model)
    found: dict[str, Any] = {"name": name, "task": task, "different": []}
    seconds = []
    for number in range(STEPS):
        started = time.perf_counter()
        got = step(compiled, model, inputs, training)
        seconds.append(time.perf_counter() - started)
        found["different"] += [f"step {number}: {text}" for text in differences(got, expected)]
    if PROCESS.packages is not None:
        PROCESS.packages.flush()
    found["seconds"] = seconds
    found["frames"] = dict(counters["frames"])
    found["traced"] = {kind: counters["stats"][kind] for kind in ("calls_captured", "unique_graphs")}
    found["functions"] = [asdict(report) for report in precompiled.package_report()]
    found["graphs"] = [vars(graph) for graph in precompiled.report()]
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
