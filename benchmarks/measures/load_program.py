"""The process that loads one artifact, as a client does on a hit; prints its seconds, and what processes it started.

Usage: python -m benchmarks.measures.load_program SPEC, a JSON object: ``store``, whose only artifact it is. Prints one
line of JSON: ``backend_s``, for the import of ours after a call of torch.compile, which imports Dynamo and Inductor
before any backend is called; ``load_s``: read, verify and load; ``started``, the child processes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

# What the interpreter says (sys.audit) before it starts a process by any of its ways.
STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "subprocess.Popen"}


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    started: list[str] = []
    sys.addaudithook(lambda event, args: started.append(f"{event} {args}"[:200]) if event in STARTS else None)
    torch.compile(torch.nn.Identity())
    begun = time.perf_counter()
    import precompiled.backend  # noqa: F401 - with what a lookup needs

    backend_s = time.perf_counter() - begun
    from precompiled.client.load import load
    from precompiled.graph import capture
    from precompiled.store.artifacts import Store

    store = Store(Path(spec["store"]))
    (artifact,) = store.all_artifacts()
    recorded = store.read_program(artifact)
    assert recorded is not None
    modes = capture.parse(recorded)["modes"]
    begun = time.perf_counter()
    load(store, artifact, modes, cudagraphs=False)
    load_s = time.perf_counter() - begun
    print(json.dumps({"backend_s": backend_s, "load_s": load_s, "started": started}))


if __name__ == "__main__":
    main()
