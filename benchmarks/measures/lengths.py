"""Measures (l): what a training run pays for sequence lengths that an earlier run has met in a different order."""

from __future__ import annotations

from benchmarks.harness.effort import Effort, Say
from benchmarks.harness.hosts import PACKAGES, fresh_host
from benchmarks.harness.result import Result


def lengths(effort: Effort, say: Say) -> list[Result]:
    """(l) Traced graphs and eager steps of the second process, with twelve sequence lengths in random order."""
    traced = Result("l", "12 sequence lengths, second process: graphs traced", "", 0)
    eager = Result("l", "12 sequence lengths, second process: eager steps", "", 0)
    for number in range(effort.repeats):
        with fresh_host() as host:
            host.start_daemon()
            for seed in (2 * number, 2 * number + 1):
                found = host.run({"seed": seed}, hook=True, extra=PACKAGES, program="measures.lengths_program")
            host.stop_daemon()
        traced.samples.append(found["traced"])
        eager.samples.append(found["eager"])
        say(f"second process: {found['traced']} graphs traced, {found['eager']} of {found['steps']} steps eager")
    return [traced, eager]
