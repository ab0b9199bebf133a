"""Collects precompiled's reports in the calling process, which runs a program of a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch._dynamo.utils import counters

import precompiled
from precompiled.client.process import PROCESS

# The longest wait for a step's graphs, in seconds. Steps on a loaded 2-core machine wait far less.
WAIT_S = 600.0


def waited() -> bool:
    return precompiled.wait(WAIT_S)


def counted() -> dict[str, Any]:
    """Return counts in JSON types only, because a task queue transports them."""
    if PROCESS.packages is not None:
        PROCESS.packages.flush()
    return {
        "traced": counters["frames"].get("total", 0),  # frames that Dynamo counted
        "reports": [vars(graph) for graph in precompiled.report()],
        "functions": [asdict(report) for report in precompiled.package_report()],
    }
