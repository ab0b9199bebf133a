"""Runs one rank of a case, and writes its results and precompiled's reports.

Usage, by torchrun: python -m benchmarks.ranks.program SPEC. The caller may enable precompiled. SPEC is a JSON object:
- ``name``: the case
- ``file``: the beginning of the paths of two output files: ``.pt`` with each step's results, and ``.json`` with the
  rest
- ``wait``: whether to wait for pending graphs after each step
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.harness import state
from benchmarks.ranks import CASES


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    values: list[Any] = []
    seconds: list[float] = []
    waited = True
    started = time.perf_counter()
    for step in CASES[spec["name"]].steps():
        seconds.append(time.perf_counter() - started)
        values.append(dict(step))
        waited = waited and (not spec["wait"] or state.waited())
        started = time.perf_counter()
    torch.save(values, f"{spec['file']}-{rank}.pt")
    found = {"seconds": seconds, "waited": waited, **state.counted()}
    Path(f"{spec['file']}-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    # Exit without Python's shutdown, because plain torch 2.13 sometimes hangs there. The destructor of DDP's process
    # group holds the GIL while it waits for a thread that needs the GIL.
    atexit._run_exitfuncs()
    os._exit(0)


if __name__ == "__main__":
    main()
