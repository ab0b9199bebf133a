"""The process that runs architectures, one after another: eager, compiled, and compiled again after the swap.

Usage: python -m benchmarks.architectures.program SPEC, a JSON object: ``rows``, a list of [architecture, task],
``wait_s``, how long to wait for one row's artifacts, and ``device``. Prints a line of JSON before each row
({"begun": row}) and one after it. precompiled is switched on from outside.
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

# After the swap another graph may turn up (Dynamo compiles anew when what it guards on has changed): as often.
ROUNDS = 3
STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.spawn", "os.system", "os.exec"})
# Kernels of a made-up GPU do not run: what they give is of the right kind, and nothing more.
compared = of_other_kind if activate.is_active() else differences


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    transformers.utils.logging.set_verbosity_error()
    started: list[str] = []
    sys.addaudithook(lambda event, args: started.append(f"{event} {args[:2]}") if event in STARTS else None)
    if activate.is_active():
        fresh_memory.fill(0)  # which no kernel writes: a model that looks at a value would go any way
    cubins: set[Path] = set()
    for name, task in spec["rows"]:
        print(json.dumps({"begun": [name, task]}), flush=True)
        began = time.monotonic()
        started.clear()
        known = len(precompiled.report())
        compiles = _compiles()
        found: dict[str, Any] = {"different": [], "idle": [], "waited": True, "error": ""}
        try:
            _examine(_on(spec["device"], ARCHITECTURES[name].build()), task == "training", spec["wait_s"], found)
        except Exception:  # noqa: BLE001 - a row of its own; the others are still to come
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
    """How many graphs AOTAutograd was asked to compile in this process (torch/_dynamo/backends/common.py)."""
    return int(torch._dynamo.utils.counters["aot_autograd"]["total"])


def _examine(example: Example, training: bool, wait_s: float, found: dict[str, Any]) -> None:
    """Compare with eager before and after the swap; ``found`` holds what is known when it raises."""
    torch._dynamo.reset()  # all architectures share frames of transformers', and each frame has a limit of compiles
    model = example.model.train(training)
    expected = step(model, example, training)
    if unsteady := differences(step(model, example, training), expected):
        raise AssertionError(f"eager differs from itself: {unsteady}")
    compiled = torch.compile(model)
    before = len(precompiled.report())
    first = compared(step(compiled, example, training), expected)
    found["different"] += [f"at first: {text}" for text in first]
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
