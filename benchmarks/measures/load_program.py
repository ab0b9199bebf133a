"""Loads one artifact as a client does on a hit, and prints the seconds and the child processes.

Usage: python -m benchmarks.measures.load_program SPEC. SPEC is a JSON object: ``store``, a store with one artifact.
Prints one JSON line:
- ``backend_s``: import of precompiled's backend after torch.compile has imported Dynamo and Inductor
- ``load_s``: read, verify and load
- ``started``: the child processes
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

# Audit events (sys.audit) that the interpreter raises before it starts a process.
STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "subprocess.Popen"}


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    started: list[str] = []
    sys.addaudithook(lambda event, args: started.append(f"{event} {args}"[:200]) if event in STARTS else None)
    torch.compile(torch.nn.Identity())
    begun = time.perf_counter()
    import precompiled.backend  # noqa: F401 - imports all modules that a lookup needs

    backend_s = time.perf_counter() - begun
    from precompiled.client.load import load_for_graph
    from precompiled.core.program_data import CaptureState
    from precompiled.graph import capture
    from precompiled.store.artifacts import Store

    store = Store(Path(spec["store"]))
    (artifact,) = store.all_artifacts()
    recorded = store.read_program(artifact)
    assert recorded is not None
    modes = capture.parse(recorded)["modes"]
    state = CaptureState(modes=modes, device="cpu", cudagraphs=False, size_inputs=[], modules={})
    begun = time.perf_counter()
    load_for_graph(store, artifact, state)
    load_s = time.perf_counter() - begun
    print(json.dumps({"backend_s": backend_s, "load_s": load_s, "started": started}))


if __name__ == "__main__":
    main()
