"""Runs one architecture eager and compiled, and prints what Dynamo and packages did as a JSON line.

Usage: python -m benchmarks.packages.program SPEC. SPEC is a JSON object: ``architecture``, ``task``. The caller enables
precompiled.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import transformers
from torch._dynamo.utils import counters

from benchmarks.harness.state import counted
from benchmarks.models.compare import differences, step
from benchmarks.models.zoo import ARCHITECTURES

STEPS = 2  # the second call must cause no recompile


def main() -> None:
    spec: dict[str, str] = json.loads(sys.argv[1])
    training = spec["task"] == "training"
    transformers.utils.logging.set_verbosity_error()
    example = ARCHITECTURES[spec["architecture"]].build()
    model = example.model.train(training)
    expected = step(model, example, training)
    compiled = torch.compile(model)
    found: dict[str, Any] = {"different": []}
    seconds = []
    for number in range(STEPS):
        started = time.perf_counter()
        got = step(compiled, example, training)
        seconds.append(time.perf_counter() - started)
        found["different"] += [f"step {number}: {text}" for text in differences(got, expected)]
    found |= {"seconds": seconds, "graphs": counters["stats"]["unique_graphs"], **counted()}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
