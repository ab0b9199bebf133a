"""Limits processes to a share of a core with Linux's CPU controller, so that a small machine has several equal nodes.

Needs root and writable cgroups (version 1 or 2).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
EMPTY_S = 30.0


class Share:
    """A cgroup that may use ``share`` of a core. Raises OSError if there is no CPU controller."""

    def __init__(self, name: str, share: float) -> None:
        quota = int(share * PERIOD_US)
        self._parent = ROOT / "cpu" if (ROOT / "cpu").is_dir() else ROOT
        self._group = self._parent / f"precompiled-{os.getpid()}-{name}"
        if self._parent == ROOT:  # cgroup version 2
            (ROOT / "cgroup.subtree_control").write_text("+cpu")
        self._group.mkdir()
        if self._parent == ROOT:
            (self._group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self._group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._group / "cpu.cfs_quota_us").write_text(str(quota))

    def enter(self) -> None:
        """Add this process to the group until ``leave``. Processes that this process starts meanwhile stay in the
        group.
        """
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        (self._parent / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        """Remove the group after its processes have ended, waiting at most EMPTY_S seconds."""
        deadline = time.monotonic() + EMPTY_S
        while (self._group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._group.rmdir()
