"""The access list of a file (man 5 acl): users to whom the kernel denies a Unix socket before they reach the daemon."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

# Of linux/posix_acl_xattr.h and posix_acl.h: the list is an extended attribute, a version and then 8 bytes per entry.
_ATTRIBUTE = "system.posix_acl_access"
_VERSION = struct.pack("<I", 2)
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_READ_AND_WRITE = 6
_NOBODY = 0xFFFFFFFF


def deny(path: Path, uids: Iterable[int]) -> None:
    """Let everyone read and write a file except these users. Root is never denied.

    Raises OSError, for example where the file system has no access lists.
    """
    entries = [(_OWNER, _READ_AND_WRITE, _NOBODY)]
    entries += [(_USER, 0, uid) for uid in sorted(uids)]
    entries += [(tag, _READ_AND_WRITE, _NOBODY) for tag in (_GROUP, _MASK, _OTHERS)]
    os.setxattr(path, _ATTRIBUTE, _VERSION + b"".join(struct.pack("<HHI", *entry) for entry in entries))
