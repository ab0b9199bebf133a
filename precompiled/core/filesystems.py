"""Which file system a path is on, and whether other hosts share it.

On one that is shared, a name that is there may be another host's: a socket on which nobody listens here, a file that
somebody removes while it is mapped here (the kernel then ends the process that touches it: SIGBUS). And no event tells
of what another host has written. Importable without torch.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path

# Types in /proc/self/mountinfo.
NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs",
                     "fuse.sshfs", "fuse.rclone", "fuse.s3fs", "virtiofs", "vboxsf"})  # fmt: skip
_MOUNTS = Path("/proc/self/mountinfo")


def kind_of(path: Path | str) -> str:
    """The type of the file system that has ``path``, or would have it; "" where that cannot be told."""
    directory = os.path.realpath(path)
    while not os.path.exists(directory) and directory != "/":
        directory = os.path.dirname(directory)
    try:
        mounts = _MOUNTS.read_text()
    except OSError:
        return ""
    best, kind = "", ""
    for line in mounts.splitlines():
        # number parent major:minor root mountpoint options [optional fields] - type source options (proc(5))
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split()[4])  # a space is \040
        if len(place) >= len(best) and (directory == place or directory.startswith(place.rstrip("/") + "/")):
            best, kind = place, after.split()[0]
    return kind


@cache
def is_shared(path: Path | str) -> bool:
    """Whether other hosts may have the file system of ``path`` too. Looked up once: nothing of ours moves."""
    return kind_of(path) in NETWORK
