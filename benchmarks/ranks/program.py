"""One rank of a case: its steps, and what precompiled says of them.

Usage, by torchrun: python -m benchmarks.ranks.program SPEC, a JSON object: ``name``; ``file``, the beginning of the
names of two files, for what each step gave (``.pt``) and for the rest (``.json``); ``wait``, whether to wait after a
step for graphs that are pending. precompiled is switched on from outside, if at all.
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
    # Not by the end of Python, where the destructor of DDP's group waits, with the GIL held, for a thread that waits
    # for the GIL: plain torch 2.13 hangs so once in a while.
    atexit._run_exitfuncs()
    os._exit(0)


if __name__ == "__main__":
    main()
