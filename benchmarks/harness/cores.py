"""A share of a core for what is started within, by the kernel's CPU controller: a machine of few cores can have several
equal ones, each with less than a core. Needs root, and cgroups (version 1 or 2) that it may write.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
EMPTY_S = 30.0


class Share:
    """A cgroup that may use ``share`` of a core. Raises OSError where there is no such controller."""

    def __init__(self, name: str, share: float) -> None:
        quota = int(share * PERIOD_US)
        self._parent = ROOT / "cpu" if (ROOT / "cpu").is_dir() else ROOT
        self._group = self._parent / f"precompiled-{os.getpid()}-{name}"
        if self._parent == ROOT:  # version 2
            (ROOT / "cgroup.subtree_control").write_text("+cpu")
        self._group.mkdir()
        if self._parent == ROOT:
            (self._group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self._group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._group / "cpu.cfs_quota_us").write_text(str(quota))

    def enter(self) -> None:
        """From now on, what this process starts is in the group, and this process as well until it leaves."""
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        (self._parent / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        """Once its processes have ended."""
        deadline = time.monotonic() + EMPTY_S
        while (self._group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._group.rmdir()
