"""Measures (p): the first call of a process with a package, relative to torch.compile's warm start. Also measures the
cost of recording packages.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

from benchmarks.harness.effort import FULL, QUICK, Say
from benchmarks.harness.hosts import PACKAGES, expect, fresh_host

GOAL = 0.12
ON = {**PACKAGES, "PRECOMPILED_MODE": "wait"}


def first_call(quick: bool, say: Say) -> list[float]:
    """Return ratios for GPT-2's training: the first call with a package to the first call of a warm torch.compile.

    The time of one compiled step is subtracted from both first calls.
    """
    effort = QUICK if quick else FULL
    spec = effort.spec(pending="wait", steps=3)
    with fresh_host() as our_host, fresh_host() as plain_host:
        our_host.start_daemon()
        our_host.run(spec, hook=True, extra=ON)
        our_host.run(spec, hook=True, extra=ON)  # this run also records the graphs that follow the swap
        plain_host.run(spec, hook=False)
        say("both caches are filled")

        def sample(side: str) -> float:
            if side == "ours":
                found = our_host.run(spec, hook=True, extra=ON)
                expect(found["reports"], "compiled", "package")
            else:
                found = plain_host.run(spec, hook=False)
            return float(found["steps"][0]["s"]) - float(found["step_s"])

        return measure_in_turns(sample, ("ours", "torch.compile"), quick, say)


def recording(quick: bool, say: Say) -> list[float]:
    """Return how much longer the first call of GPT-2's training takes if a package is recorded (ratios).

    Dynamo traces in both processes, and the artifacts exist.
    """
    spec = (QUICK if quick else FULL).spec(pending="wait", steps=2)
    with fresh_host() as host:
        host.start_daemon()
        host.run(spec, hook=True)
        say("the artifacts are there")

        def sample(side: str) -> float:
            shutil.rmtree(host.settings.cache_dir / "packages", ignore_errors=True)
            found = host.run(spec, hook=True, extra=ON if side == "recording" else {"PRECOMPILED_MODE": "wait"})
            expect(found["reports"], "compiled", "hit")
            return float(found["steps"][0]["s"])

        return measure_in_turns(sample, ("recording", "without"), quick, say)


def measure_in_turns(sample: Callable[[str], float], sides: tuple[str, str], quick: bool, say: Say) -> list[float]:
    """Sample both sides several times, in alternating order. Return for each pair the first side's seconds divided by
    the second side's.
    """
    ratios = []
    for number in range(2 if quick else 7):
        seconds = {side: sample(side) for side in (sides if number % 2 else reversed(sides))}
        ratios.append(seconds[sides[0]] / seconds[sides[1]])
        say(", ".join(f"{side} {value:.2f} s" for side, value in seconds.items()))
    return ratios
