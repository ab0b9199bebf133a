"""`make test-all`: runs every suite that this machine supports, one after the other, and prints the time of each.

A suite that cannot run is listed with the reason. This is not a failure. Each suite is also a target of make.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _anywhere() -> str:
    return ""


def _with_a_gpu() -> str:
    asked = [sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]
    return "" if subprocess.run(asked, check=False).returncode == 0 else "torch sees no GPU here"


def _with_nspawn() -> str:
    if os.geteuid() != 0:
        return "not root"
    return "" if shutil.which("systemd-nspawn") else "systemd-nspawn is missing (Debian: systemd-container)"


def _with_podman() -> str:
    missing = [name for name in ("podman", "debootstrap") if shutil.which(name) is None]
    if missing:
        return f"{missing[0]} is missing (Debian's package of that name)"
    return "" if os.geteuid() == 0 else "not root"


def _with_ray() -> str:
    found = (text.partition(";") for text in requires("precompiled") or ())
    ray = next(what.strip() for what, _, when in found if what.startswith("ray") and "test-farm" in when)
    asked = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", ray]
    return "" if subprocess.run(asked, capture_output=True, check=False).returncode == 0 else f"pip can get no {ray}"


@dataclass(frozen=True)
class Suite:
    """``target``: a target of make. ``problem`` returns why the suite cannot run here, or ""."""

    target: str
    problem: Callable[[], str] = _anywhere


SUITES = (
    Suite("test"),
    Suite("test-integration"),
    Suite("test-versions"),
    Suite("test-systemd", _with_nspawn),
    Suite("test-gpu", _with_a_gpu),
    Suite("test-container", _with_podman),
    Suite("test-buckets"),  # in a separate environment
    Suite("test-slow"),  # the longest: with --within, it may not finish
    Suite("test-farm", _with_ray),  # last, because it installs packages with which the other suites are not tested
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [suite.target for suite in SUITES]
    parser.add_argument("--without", action="append", default=[], choices=names, help="leave this suite out")
    limit = "begin no suite, and no test, after S seconds"
    parser.add_argument("--within", type=float, default=math.inf, metavar="S", help=limit)
    arguments = parser.parse_args()
    rows, until = [], time.time() + arguments.within
    for suite in SUITES:
        if suite.target in arguments.without:
            continue
        late = time.time() > until
        problem = f"{arguments.within:.0f} s were over" if late else suite.problem()
        if problem:
            rows.append((suite.target, "not run", problem))
            continue
        started = time.monotonic()
        print(f"\n== make {suite.target}", flush=True)
        # A container that does not boot must fail the suite instead of skipping it.
        environment = {"PRECOMPILED_SYSTEMD_TESTS": "require", **os.environ, "PRECOMPILED_TESTS_UNTIL": str(until)}
        status = subprocess.run(["make", suite.target], cwd=ROOT, env=environment, check=False).returncode
        rows.append((suite.target, "passed" if status == 0 else "FAILED", f"{time.monotonic() - started:.0f} s"))
    print()
    for target, outcome, said in rows:
        print(f"{target:16} {outcome:8} {said}")
    return 1 if any(outcome == "FAILED" for _, outcome, _ in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
