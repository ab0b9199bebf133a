"""Reads how much memory this host and its cgroup have left."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = _CGROUP) -> int:
    """The memory that processes can still use on this host, or in this cgroup if its limit leaves less.

    Raises OSError, ValueError.
    """
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = (cgroup / "memory.max").read_text().strip()
    except FileNotFoundError:  # the host's own cgroup, or cgroup v1
        return available
    if limit == "max":
        return available
    stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    # The kernel drops pages of files before it ends a process.
    used = int((cgroup / "memory.current").read_text()) - int(stat["inactive_file"]) - int(stat["active_file"])
    return min(available, int(limit) - used)


def resident_bytes() -> int:
    """The memory that this process uses. Raises OSError."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
