"""Access control lists (man 5 acl): let the kernel keep certain users from connecting to the daemon's Unix socket."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

# Format (linux/posix_acl_xattr.h, posix_acl.h): an extended attribute with a version, then 8 bytes per entry.
_ATTRIBUTE = "system.posix_acl_access"
_VERSION = struct.pack("<I", 2)
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_READ_AND_WRITE = 6
_NOBODY = 0xFFFFFFFF


def deny(path: Path, uids: Iterable[int]) -> None:
    """Let everyone except these users read and write a file. Root is never denied.

    Raises OSError, for example if the file system has no access lists.
    """
    entries = [(_OWNER, _READ_AND_WRITE, _NOBODY)]
    entries += [(_USER, 0, uid) for uid in sorted(uids)]
    entries += [(tag, _READ_AND_WRITE, _NOBODY) for tag in (_GROUP, _MASK, _OTHERS)]
    os.setxattr(path, _ATTRIBUTE, _VERSION + b"".join(struct.pack("<HHI", *entry) for entry in entries))
