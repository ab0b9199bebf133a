"""Runs one rank of many without the others: torch's fake process group sends nothing and returns at once.

Usage: python -m benchmarks.ranks.fake SPEC. SPEC is a JSON object: ``rank``, ``world``. Prints the graphs' reports.
"""

from __future__ import annotations

import json
import sys

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import precompiled
from benchmarks.ranks import llama


def main() -> None:
    spec = json.loads(sys.argv[1])
    dist.init_process_group("fake", store=FakeStore(), rank=spec["rank"], world_size=spec["world"])
    next(llama.steps(tensor_parallel=8))
    print(
        json.dumps(
            [
                {
                    "key": graph.key,
                    "state": graph.state,
                    "source": graph.source,
                    "reason": graph.reason,
                    "message": graph.message,
                }
                for graph in precompiled.report()
            ]
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
