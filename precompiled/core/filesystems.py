"""Determines which file system a path is on, and whether other hosts share it.

On a shared file system, a name may belong to another host. For example, no local process listens on a socket of another
host. Another host may also remove a file that a process of this host has mapped. If the process then reads the file,
the kernel ends the process with SIGBUS. Moreover, Linux reports no event when another host writes a file.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

# File system types, as in /proc/self/mountinfo.
NETWORK = frozenset(
    "9p afs beegfs ceph cifs fuse.rclone fuse.s3fs fuse.sshfs gpfs lustre nfs nfs4 smb3 smbfs vboxsf virtiofs".split()
)
_MOUNTS = Path("/proc/self/mountinfo")


def kind_of(path: Path | str) -> str:
    """The type of the file system of ``path``; "" if unknown. The path need not exist."""
    directory = os.path.realpath(path)
    while not os.path.exists(directory) and directory != "/":
        directory = os.path.dirname(directory)
    try:
        mounts = _MOUNTS.read_text()
    except OSError:
        return ""
    best, kind = "", ""
    for line in mounts.splitlines():
        # Fields: number parent major:minor root mountpoint options [optional fields] - type source options (proc(5))
        before, _, after = line.partition(" - ")
        # A space is written as \040.
        place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split()[4])
        if len(place) >= len(best) and (directory == place or directory.startswith(place.rstrip("/") + "/")):
            best, kind = place, after.split()[0]
    return kind


@cache
def is_shared(path: Path | str) -> bool:
    """Whether other hosts may share the file system of ``path``.

    The result is cached, because the directories of precompiled do not move to another file system.
    """
    return kind_of(path) in NETWORK
