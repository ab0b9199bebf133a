"""`make test-all`: runs every suite that this machine supports, one after the other, and prints the time of each.

A suite that cannot run is listed with the reason, and is not a failure. Each suite is also a target of make. CI has no
time for all suites: besides each commit's tests, it runs one turn of the rest. The commit's hash selects the turn.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


def _anywhere() -> str:
    return ""


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
    found = (text.partition(";") for text in requires("torch-precompiled") or ())
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
    Suite("test-gpu"),
    Suite("gpu-check"),
    Suite("test-container", _with_podman),
    Suite("test-buckets"),  # in a separate environment
    Suite("test-slow"),  # the longest: it may not finish with --within
    Suite("test-farm", _with_ray),  # last, because the other suites are not tested with the packages that it installs
)
WHOLE = "1/1"  # "2/3" is the second of three parts
LAST_BYTES = 6000
EACH_TURN = ("test", "test-integration")
# The other suites of a CI run, about 25 minutes each.
TURNS = (
    {"test-versions": "1/3"},
    {"test-versions": "2/3"},
    {"test-versions": "3/3"},
    {"test-systemd": WHOLE, "test-container": WHOLE, "test-buckets": WHOLE},
    {"test-gpu": WHOLE, "gpu-check": WHOLE, "test-farm": WHOLE},
    *({"test-slow": f"{part}/5"} for part in range(1, 6)),
)


def turn_of_commit() -> int:
    """The index of the turn that the hash of HEAD selects. Over many commits, CI takes each turn equally often."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return int(head, 16) % len(TURNS)


class Row(NamedTuple):
    """``said``: the time of a suite, or why it did not run. ``last``: its last output."""

    target: str
    outcome: str
    said: str
    last: str = ""


def run(suite: Suite, part: str, until: float) -> Row:
    """Run one suite, which begins no test after ``until`` (seconds since the epoch)."""
    problem = "no time was left" if time.time() > until else suite.problem()
    if problem:
        return Row(suite.target, "not run", problem)
    started = time.monotonic()
    print(f"\n== make {suite.target} {part}", flush=True)
    # If a container does not boot, the suite must fail instead of skipping.
    environment = {"PRECOMPILED_SYSTEMD_TESTS": "require", **os.environ}
    environment |= {"PRECOMPILED_TESTS_UNTIL": str(until), "PRECOMPILED_TESTS_PART": part}
    command, last = ["make", suite.target], bytearray()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as make:
        assert make.stdout is not None
        # A thread, because a process that a suite left behind would keep the stream open.
        reader = threading.Thread(target=_pass_on, args=(make.stdout.fileno(), last), daemon=True)
        reader.start()
        status = make.wait()
        reader.join(10)
    name = f"{suite.target} {part}".removesuffix(f" {WHOLE}")
    outcome = "passed" if status == 0 else "FAILED"
    return Row(name, outcome, f"{time.monotonic() - started:.0f} s", last.decode(errors="replace"))


def _pass_on(stream: int, last: bytearray) -> None:
    """Print what a suite prints, and keep its last lines in ``last``."""
    while some := os.read(stream, 65536):
        sys.stdout.buffer.write(some)
        sys.stdout.buffer.flush()
        last[:] = (last + some)[-LAST_BYTES:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [suite.target for suite in SUITES]
    parser.add_argument("--without", action="append", default=[], choices=names, help="leave this suite out")
    limit = "begin no suite, and no test, after S seconds"
    parser.add_argument("--within", type=float, default=math.inf, metavar="S", help=limit)
    parser.add_argument("--one-turn", action="store_true", help="as CI: tests of each commit, and one turn of the rest")
    arguments = parser.parse_args()
    parts = dict.fromkeys(names, WHOLE)
    if arguments.one_turn:
        turn = turn_of_commit()
        parts = dict.fromkeys(EACH_TURN, WHOLE) | TURNS[turn]
        print(f"turn {turn + 1} of {len(TURNS)}: {', '.join(TURNS[turn])}")
    until = time.time() + arguments.within
    rows = [
        run(suite, parts[suite.target], until)
        if suite.target in parts
        else Row(suite.target, "not run", "another turn")
        for suite in SUITES
        if suite.target not in arguments.without
    ]
    failed = [row for row in rows if row.outcome == "FAILED"]
    for row in failed[:-1]:  # the last one's output is just above
        print(f"\n== the last output of make {row.target}\n{row.last}")
    print()
    for row in rows:
        print(f"{row.target:18} {row.outcome:8} {row.said}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
