"""Runs each architecture of a list in this process: eager, then compiled, then again after the swap to the artifact.

Usage: python -m benchmarks.architectures.program SPEC. SPEC is a JSON object: ``rows``, a list of [architecture, task];
``wait_s``, the longest wait for the artifacts of one row; ``device``. The process prints a JSON line before each row
({"begun": row}) and one after it. The caller enables precompiled.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

import precompiled
from benchmarks.architectures.cubins import architecture_of
from benchmarks.harness import fresh_memory
from benchmarks.models.compare import differences, of_other_kind, step
from benchmarks.models.zoo import ARCHITECTURES, Example
from precompiled.made_up_cuda import activate

# After a swap, a failed guard may make Dynamo recompile and submit another graph. So the wait and the call are
# repeated.
ROUNDS = 3
STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.system", "os.exec"})
# Kernels of a made-up GPU do not run, so only shapes and dtypes are compared.
compared = of_other_kind if activate.is_active() else differences


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    transformers.utils.logging.set_verbosity_error()
    started: list[str] = []
    sys.addaudithook(lambda event, args: started.append(f"{event} {args[:2]}") if event in STARTS else None)
    if activate.is_active():
        # Kernels of a made-up GPU write no results into GPU memory. If the memory is zero, a model's control flow is
        # the same in each run.
        fresh_memory.fill(0)
    cubins: set[Path] = set()
    for name, task in spec["rows"]:
        print(json.dumps({"begun": [name, task]}), flush=True)
        began = time.monotonic()
        started.clear()
        known = len(precompiled.report())
        compiles = _compiles()
        found: dict[str, Any] = {"different": [], "idle": [], "in_pieces": 0, "waited": True, "error": ""}
        try:
            _examine(_on(spec["device"], ARCHITECTURES[name].build()), task == "training", spec["wait_s"], found)
        except Exception:  # noqa: BLE001 - recorded as this row's error; the next rows still run
            found["error"] = traceback.format_exc()
        found["reports"] = [vars(graph) for graph in precompiled.report()[known:]]
        found["compiles"] = _compiles() - compiles
        found["seconds"] = time.monotonic() - began
        found["started"] = list(started)
        here = set(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.cubin"))
        found["cubins"] = Counter(architecture_of(path) for path in here - cubins)
        cubins = here
        print(json.dumps(found), flush=True)


def _on(device: str, example: Example) -> Example:
    def moved(values: dict[str, Any]) -> dict[str, Any]:
        return torch.utils._pytree.tree_map_only(torch.Tensor, lambda value: value.to(device), values)

    return Example(example.model.to(device), moved(example.inputs), moved(example.targets))


def _compiles() -> int:
    """Return how many graphs AOTAutograd compiled in this process (counters of torch/_dynamo/backends/common.py)."""
    return int(torch._dynamo.utils.counters["aot_autograd"]["total"])


def _examine(example: Example, training: bool, wait_s: float, found: dict[str, Any]) -> None:
    """Compare the compiled model with eager before and after the swap.

    Writes each result into ``found`` at once, so that a later exception in the row does not lose it.
    """
    torch._dynamo.reset()  # architectures share frames of transformers, and Dynamo limits a frame's compiles
    model = example.model.train(training)
    expected = step(model, example, training)
    if unsteady := differences(step(model, example, training), expected):
        raise AssertionError(f"eager differs from itself: {unsteady}")
    compiled = torch.compile(model)
    before = len(precompiled.report())
    first = compared(step(compiled, example, training), expected)
    found["different"] += [f"at first: {text}" for text in first]
    pending = [graph for graph in precompiled.report()[before:] if graph.state == "pending"]
    found["in_pieces"] = sum(graph.calls_compiled > 0 for graph in pending)
    for _ in range(ROUNDS):
        known = len(precompiled.report())
        found["waited"] = precompiled.wait(wait_s)
        again = compared(step(compiled, example, training), expected)
        found["different"] += [f"after the swap: {text}" for text in again]
        if len(precompiled.report()) == known:
            break
    graphs = precompiled.report()[before:]
    found["idle"] = [graph.name for graph in graphs if graph.state == "compiled" and not graph.calls_compiled]


if __name__ == "__main__":
    main()
