"""What is removed from a remote: by age, and the oldest first where it is too large.

Ages count from when an object was written, by the remote's clock: no store of objects knows when one was last read. A
host that needs what was removed compiles it, and puts it again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from precompiled.remote import envelope as form
from precompiled.remote.bucket import Bucket
from precompiled.remote.lease import is_lease
from precompiled.remote.transfer import PARALLEL

LEASE_MAX_AGE_S = 3600.0  # far beyond the longest time without a beat
_CLOCK = re.compile(r"clock-[0-9a-f]{16}")  # of ``time_there``, left by one that was killed


@dataclass(frozen=True)
class Item:
    """One of ours. ``written``: seconds since the epoch; None where the place does not say."""

    path: str
    size: int
    written: float | None


def ours(bucket: Bucket) -> list[Item]:
    """All objects and leases below the URL; what else lies there is nobody's business. Raises RemoteError."""
    return [
        Item(path, size, written)
        for path, (size, written) in sorted(bucket.everything().items())
        if form.object_at(path, size) is not None or _is_passing(path)
    ]


def time_there(bucket: Bucket) -> float:
    """What time it is in the remote, by an object that is written for it, in seconds since the epoch: a clock that is
    fast here would remove leases of those who hold them. Raises RemoteError.
    """
    clock = f"clock-{os.urandom(8).hex()}"
    bucket.write(clock, b".")
    try:
        written = bucket.everything().get(clock, (1, None))[1]
    finally:
        bucket.remove(clock)
    return time.time() if written is None else written  # a place that says no times has none to compare


def _is_lease(path: str) -> bool:
    return path.startswith(f"{form.FOLDERS[form.ARTIFACT]}/") and is_lease(path.rpartition("/")[2])


def _is_passing(path: str) -> bool:
    """Whether it is of no use after an hour, whatever may be as old as one likes: a lease, or a clock that was left."""
    return _is_lease(path) or _CLOCK.fullmatch(path) is not None


def expired(items: Collection[Item], now: float, max_age_s: float | None, max_bytes: int | None) -> list[Item]:
    """Those that are to go. What says no time of its own stays, whatever its size."""
    found: list[Item] = []
    kept: list[Item] = []
    for item in items:
        age = None if item.written is None else now - item.written
        limit = LEASE_MAX_AGE_S if _is_passing(item.path) else max_age_s
        (found if age is not None and limit is not None and age > limit else kept).append(item)
    left = sum(item.size for item in kept)
    for item in sorted((one for one in kept if one.written is not None), key=lambda one: one.written or 0.0):
        if max_bytes is None or left <= max_bytes:
            break
        if not _is_lease(item.path):
            found.append(item)
            left -= item.size
    return found


def remove(bucket: Bucket, items: Collection[Item]) -> None:
    """Raises RemoteError; what was removed until then is."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(lambda item: bucket.remove(item.path), items))
