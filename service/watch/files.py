"""Content digests of source files. A file is read again only if stat shows a possible change."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from precompiled.core.regular_file import open_regular

ABSENT = ""  # the digest of a missing file
# If a file was saved less than this long before it was read, a further save may leave the file's times unchanged. The
# kernel's file times are as coarse as its tick. (Git calls such entries "racily clean".)
RACY_S = 0.05
CHUNK = 1 << 20


@dataclass(frozen=True)
class _Known:
    signature: tuple[int, ...] | None  # None: always read the file again
    digest: str


class Files:
    """Digests by absolute path."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def digest(self, path: str) -> str:
        """SHA-256 of the current contents; ABSENT if the file is missing or cannot be read."""
        try:
            signature = _signature(os.stat(path))
        except OSError:
            self._known.pop(path, None)
            return ABSENT
        known = self._known.get(path)
        if known is not None and known.signature == signature:
            return known.digest
        while True:
            digest = _read(path)
            try:
                status = os.stat(path)
            except OSError:
                self._known.pop(path, None)
                return ABSENT
            if _signature(status) == signature or digest == ABSENT:
                break
            signature = _signature(status)  # it was saved during the read
        racy = abs(time.time() - max(status.st_ctime, status.st_mtime)) < RACY_S
        self._known[path] = _Known(None if racy else signature, digest)
        return digest

    def changed(self, expected: Mapping[str, str]) -> list[str]:
        """The paths whose digests differ from ``expected``."""
        return [path for path, digest in expected.items() if self.digest(path) != digest]

    def keep(self, paths: set[str]) -> None:
        """Forget the digests of all paths except these."""
        for path in self._known.keys() - paths:
            del self._known[path]


def saved_at(path: str) -> float:
    """The time at which a file was saved, in seconds since the epoch. The current time if stat fails or gives an odd
    time.
    """
    now = time.time()
    try:
        status = os.stat(path)
    except OSError:
        return now
    saved = max(status.st_mtime, status.st_ctime)
    return saved if now - 60 < saved <= now else now


def _signature(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(path: str) -> str:
    state = hashlib.sha256()
    try:
        with open(path, "rb", opener=open_regular) as file:
            while data := file.read(CHUNK):
                state.update(data)
    except OSError:
        return ABSENT
    return state.hexdigest()
