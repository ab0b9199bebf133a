"""Measures (f): the memory of an idle daemon."""

from __future__ import annotations

import time

import psutil

from benchmarks.harness.effort import QUICK, Effort, Say
from benchmarks.harness.hosts import fresh_host
from benchmarks.harness.result import Result

# Seconds after which freed memory has returned to the system.
SETTLE_S = 2.0


def daemon_memory(effort: Effort, say: Say) -> list[Result]:
    """(f) The resident memory of an idle daemon, after its start and after a compile."""
    result = Result("f", "the daemon's resident memory, idle", "MB", 60.0)
    fresh, used = [], []
    for _ in range(effort.repeats):
        with fresh_host() as host:
            daemon = psutil.Process(host.start_daemon())
            time.sleep(SETTLE_S)
            fresh.append(daemon.memory_info().rss / 1e6)
            host.run(QUICK.spec(pending="wait"), hook=True)
            time.sleep(SETTLE_S)
            used.append(daemon.memory_info().rss / 1e6)
            say(f"{fresh[-1]:.1f} MB, after a compile {used[-1]:.1f} MB")
    result.raw = {"after its start (MB)": fresh, "after a compile (MB)": used}
    result.samples = [max(pair) for pair in zip(fresh, used, strict=True)]
    return [result]
