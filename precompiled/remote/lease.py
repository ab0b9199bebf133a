"""A lease on a key: of all hosts that miss it, one compiles, and the others wait for what it puts (decision 0048).

::

    artifacts/<key>/lease-<by>-<fence>     beside the key's objects, so one listing shows both

``by``: the id of its holder's key; hosts that believe it wait. ``fence``: 1, 2, ... Each is made by a put that fails
where it is there already, so there is one holder. It is *alive* while it grows: its holder adds a byte every
``beat_s``; nobody reads what is in it. Who has seen its size unchanged for ``ttl_s`` of looking takes it for dead, and
makes the next one: no clock is compared with another's. A holder that comes late sees the higher fence and stops; what
it puts all the same is one more object for the same variant, and does no harm. Where a lease is *empty* its holder
could not compile: everybody tries for himself. It is removed when its signer has put the artifact all the same.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum

from precompiled.remote import envelope as form
from precompiled.remote.envelope import ARTIFACT, Object
from precompiled.remote.errors import RemoteError
from precompiled.remote.transfer import Transfer

TTL_S = 30.0
BEATS = 3  # within that time
_LEASE = re.compile(r"lease-([0-9a-f]{16}|unsigned)-([0-9]{8})")


class Found(Enum):
    """What a look at a key has shown."""

    HERE = "here"  # something of it was fetched that was not here
    MINE = "mine"  # this host holds the lease: it compiles
    THEIRS = "theirs"  # another one does
    ALONE = "alone"  # no lease can be had, or its holder could not compile: this host compiles without


def is_lease(name: str) -> bool:
    return _LEASE.fullmatch(name) is not None


def remove_given_up(there: Transfer, key: str) -> None:
    """Remove the empty leases of this host's signer: the artifact is there. Raises RemoteError."""
    folder = f"{form.FOLDERS[ARTIFACT]}/{key}"
    for name, size in there.bucket.listed(folder).items():
        if size == 0 and (found := _LEASE.fullmatch(name)) and found[1] == there.trust.by:
            there.bucket.remove(f"{folder}/{name}")


class Claim:
    """One host's way to one key. ``look`` until it is not THEIRS; while it is MINE, ``beat``, then one of the ends.

    All methods raise RemoteError; ``look`` raises StoreError too.
    """

    def __init__(
        self, there: Transfer, key: str, *, ttl_s: float = TTL_S, may_hold: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._there, self._key, self._clock = there, key, clock
        self._may_hold = may_hold and bool(there.trust.by)
        self.ttl_s, self.beat_s = ttl_s, ttl_s / BEATS
        self.fence = 0  # of the lease that is held
        self._size = 0
        # Of each signer's newest lease: fence, size, for how long it was seen so, when it was looked at.
        self._seen: dict[str, tuple[int, int, float, float]] = {}

    def look(self) -> Found:
        """Fetch what is there of the key; else take the lease, where nobody holds it."""
        objects, leases = self._listed()
        if self._there.fetch(self._key, objects):
            return Found.HERE
        mine, given_up = leases.get(self._there.trust.by, (0, 1))[0], False
        for by, (fence, size) in leases.items():
            if size == 0:
                given_up = True
            elif self._is_alive(by, fence, size):
                return Found.THEIRS
        if given_up or not self._may_hold:
            self._there.missed()
            return Found.ALONE
        holder = f"{socket.gethostname()} {os.getpid()} ".encode()
        if not self._there.bucket.create(self._path(mine + 1), holder):
            return Found.THEIRS  # somebody was faster
        self.fence, self._size = mine + 1, len(holder)
        try:  # what was put between the listing and the lease, which its holder then removed
            is_here = self._there.fetch(self._key)
        except Exception:
            with suppress(RemoteError):  # or others would wait for it
                self.end()
            raise
        if is_here:
            self.end()
            return Found.HERE
        self._there.missed()
        return Found.MINE

    def _is_alive(self, by: str, fence: int, size: int) -> bool:
        now = self._clock()
        known = self._seen.get(by)
        if known is None or known[:2] != (fence, size):
            self._seen[by] = fence, size, 0.0, now
            return True
        # A time in which this host did not look, or was not answered, proves nothing.
        unchanged = known[2] + min(now - known[3], self.beat_s)
        self._seen[by] = fence, size, unchanged, now
        return unchanged < self.ttl_s

    def beat(self) -> bool:
        """Show that the holder lives; whether the lease is still held."""
        _objects, leases = self._listed()
        if leases.get(self._there.trust.by, (0, 1))[0] > self.fence:
            self.fence = 0  # it was taken for dead
            return False
        self._size += 1
        self._there.bucket.write(self._path(self.fence), b"." * self._size)
        return True

    def end(self) -> None:
        """The artifact is there, or this host does not compile after all: remove the lease."""
        if self.fence:
            for fence in range(1, self.fence + 1):
                self._there.bucket.remove(self._path(fence))
            self.fence = 0

    def give_up(self) -> None:
        """The key cannot be compiled here: nobody is to wait for it."""
        if self.fence:
            self._there.bucket.write(self._path(self.fence), b"")
            self.fence = 0

    def _listed(self) -> tuple[list[Object], dict[str, tuple[int, int]]]:
        """The key's objects, and each believed signer's newest lease: fence and size."""
        folder = f"{form.FOLDERS[ARTIFACT]}/{self._key}"
        objects: list[Object] = []
        leases: dict[str, tuple[int, int]] = {}
        for name, size in self._there.bucket.listed(folder).items():
            if (item := form.object_at(f"{folder}/{name}", size)) is not None:
                objects.append(item)
            elif (found := _LEASE.fullmatch(name)) and self._there.trust.believes(found[1]):
                leases[found[1]] = max(leases.get(found[1], (0, 0)), (int(found[2]), size))
        return objects, leases

    def _path(self, fence: int) -> str:
        return f"{form.FOLDERS[ARTIFACT]}/{self._key}/lease-{self._there.trust.by}-{fence:08}"
