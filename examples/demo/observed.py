"""Runs the training of train.py in this process and prints its events as JSON lines.

Usage: observed.py STEPS COMPILED_STEPS MOST_S. Runs at least STEPS steps, COMPILED_STEPS of them compiled as a whole.
After MOST_S seconds, it runs only the missing compiled steps. A step's code is "eager", "pieces" or "compiled".

    {"event": "step", "at": s, "seconds": s, "loss": x, "code": "eager"}      "at": its end, by time.monotonic()
    {"event": "end", ...}                                                     see ``main``
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

# The processes that this process starts (compilers, probes, a daemon).
_started: list[str] = []
_STARTS = ("subprocess.Popen", "os.posix_spawn", "os.system", "os.fork", "os.forkpty")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        _started.append(" ".join(map(os.fsdecode, arguments[1])))
    elif event in _STARTS:
        _started.append(event)


def _say(event: str, **facts: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **facts}) + "\n")
    sys.stdout.flush()


def main() -> None:
    wanted_steps, wanted_compiled, most_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    disabled = os.environ.get("TORCH_COMPILE_DISABLE") == "1"
    sys.addaudithook(_audit)
    import torch
    from train import training
    from transformers.utils import logging

    import precompiled

    logging.set_verbosity_error()
    # Earlier imports and probes have nothing to do with torch.compile.
    _started.clear()

    steps = compiled = eager_calls = 0
    losses = training()
    training_began = time.monotonic()
    _say("begin", at=training_began)
    while compiled < wanted_compiled or (steps < wanted_steps and time.monotonic() - training_began < most_s):
        began = time.monotonic()
        loss = next(losses)
        ended = time.monotonic()
        eager_before, eager_calls = eager_calls, sum(graph.calls_eager for graph in precompiled.report())
        is_eager = disabled or eager_calls > eager_before
        # While pieces serve a graph, its artifact is still pending.
        is_pending = any(graph.state == "pending" for graph in precompiled.report())
        code = "eager" if is_eager else "pieces" if is_pending else "compiled"
        steps += 1
        compiled += code == "compiled"
        _say("step", at=ended, seconds=ended - began, loss=loss, code=code)

    from torch._dynamo import utils

    spent = {name: sum(values) for name, values in utils.compilation_time_metrics.items()}
    backend_s = spent.get("OutputGraph.call_user_compiler", 0.0)
    _say(
        "end",
        # Dynamo's own time, then the backend's, including a backward that autograd compiles at the first use.
        tracing_s=spent.get("_compile.compile_inner", 0.0) - backend_s,
        backend_s=backend_s + spent.get("compile_fx.<locals>.bw_compiler", 0.0),
        # Zero if packages served the whole program.
        frames=utils.counters["frames"]["total"],
        # Graphs that AOTAutograd compiled in this process, including cache hits.
        compiles=utils.counters["aot_autograd"]["total"],
        # Graphs that torch's cache did not have.
        cache_misses=utils.counters["aot_autograd"]["autograd_cache_miss"],
        started=_started,
        torch=torch.__version__,
        graphs=[vars(graph) for graph in precompiled.report()],
    )


if __name__ == "__main__":
    main()
