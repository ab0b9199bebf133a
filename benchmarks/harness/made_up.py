"""Runs a command of the benchmarks on a made-up GPU (docs/explanation/made-up-cuda.md)."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness.hosts import ROOT
from precompiled.made_up_cuda import host


def run_on_made_up_gpu(folder: str, python: str, kind: str) -> int:
    """Run this command again in a process that has the made-up GPU before it loads torch. Returns its exit status."""
    with tempfile.TemporaryDirectory(prefix="made-up-cuda-") as state:
        environment = {**os.environ, **host.variables(python, kind, Path(state))}
        command = [python, "-m", f"benchmarks.{folder}", *sys.argv[1:]]
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
