"""Selects the objects to remove from a remote: those over an age limit, and the oldest ones if the remote is too large.
Also selects leases that are older than LEASE_MAX_AGE_S.

An object's age counts from its writing, by the remote's clock, because object stores do not record reads. A host that
needs a removed object recompiles the graph and puts the object again.
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

LEASE_MAX_AGE_S = 3600.0  # seconds after which a lease is removed; its holder extends it far more often
_CLOCK = re.compile(r"clock-[0-9a-f]{16}")  # path of an object that a killed process left in ``time_there``


@dataclass(frozen=True)
class RemoteObject:
    """An object or lease that precompiled wrote. ``written``: seconds since the epoch; None if the remote does not
    record it.
    """

    path: str
    size: int
    written: float | None


def ours(bucket: Bucket) -> list[RemoteObject]:
    """All objects and leases below the URL. Other files are ignored. Raises RemoteError."""
    return [
        RemoteObject(path, size, written)
        for path, (size, written) in sorted(bucket.everything().items())
        if form.object_at(path, size) is not None or _is_passing(path)
    ]


def time_there(bucket: Bucket) -> float:
    """The time by the remote's clock, in seconds since the epoch. Finds the time by writing an object.

    The local clock is not used: if it were fast, leases that are still held would be removed. Raises RemoteError.
    """
    clock = f"clock-{os.urandom(8).hex()}"
    bucket.write(clock, b".")
    try:
        written = bucket.everything().get(clock, (1, None))[1]
    finally:
        bucket.remove(clock)
    return time.time() if written is None else written  # a remote without times gives no ages either


def _is_lease(path: str) -> bool:
    folders = (f"{form.FOLDERS[kind]}/" for kind in (form.ARTIFACT, form.KERNEL))
    return path.startswith(tuple(folders)) and is_lease(path.rpartition("/")[2])


def _is_passing(path: str) -> bool:
    """Whether a path names a lease or an object of ``time_there``. Both are useless after an hour."""
    return _is_lease(path) or _CLOCK.fullmatch(path) is not None


def select_expired(
    items: Collection[RemoteObject], now: float, max_age_s: float | None, max_bytes: int | None
) -> list[RemoteObject]:
    """The items to remove. An item without a recorded time stays, even if the remote is too large."""
    found: list[RemoteObject] = []
    kept: list[RemoteObject] = []
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


def remove(bucket: Bucket, items: Collection[RemoteObject]) -> None:
    """Remove the items. If this raises RemoteError, some items are already removed."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(lambda item: bucket.remove(item.path), items))
