"""(p) The first call of a process that has a package, beside plain torch.compile's warm start; what recording costs."""

from __future__ import annotations

import shutil

from benchmarks.harness.effort import FULL, QUICK, Say
from benchmarks.harness.hosts import PACKAGES, expect, fresh_host

GOAL = 0.12
ON = {**PACKAGES, "PRECOMPILED_MODE": "wait"}


def first_call(quick: bool, say: Say) -> list[float]:
    """GPT-2 training: the first call of a process beyond one compiled step, with a package / torch.compile warm."""
    effort = QUICK if quick else FULL
    spec = effort.spec(pending="wait", steps=3)
    ratios = []
    with fresh_host() as our_host, fresh_host() as plain_host:
        our_host.start_daemon()
        our_host.run(spec, hook=True, extra=ON)
        our_host.run(spec, hook=True, extra=ON)  # what followed the swap is recorded as well
        plain_host.run(spec, hook=False)
        say("both caches are filled")

        def sample(side: str) -> float:
            if side == "ours":
                found = our_host.run(spec, hook=True, extra=ON)
                expect(found["reports"], "compiled", "package")
            else:
                found = plain_host.run(spec, hook=False)
            return float(found["steps"][0]["s"]) - float(found["step_s"])

        for number in range(2 if quick else 7):
            order = ("ours", "torch.compile") if number % 2 else ("torch.compile", "ours")
            seconds = {side: sample(side) for side in order}
            ratios.append(seconds["ours"] / seconds["torch.compile"])
            say(", ".join(f"{side} {value:.2f} s" for side, value in seconds.items()))
    return ratios


def recording(quick: bool, say: Say) -> list[float]:
    """GPT-2 training: the first call of a process that records packages, over that of one that does not.

    Dynamo traces in both, and the artifacts are there.
    """
    spec = (QUICK if quick else FULL).spec(pending="wait", steps=2)
    ratios = []
    with fresh_host() as host:
        host.start_daemon()
        host.run(spec, hook=True)
        say("the artifacts are there")

        def sample(*, records: bool) -> float:
            shutil.rmtree(host.settings.cache_dir / "packages", ignore_errors=True)
            found = host.run(spec, hook=True, extra=ON if records else {"PRECOMPILED_MODE": "wait"})
            expect(found["reports"], "compiled", "hit")
            return float(found["steps"][0]["s"])

        for number in range(2 if quick else 7):
            seconds = {records: sample(records=records) for records in ((True, False) if number % 2 else (False, True))}
            ratios.append(seconds[True] / seconds[False])
            say(f"recording {seconds[True]:.2f} s, without {seconds[False]:.2f} s")
    return ratios
