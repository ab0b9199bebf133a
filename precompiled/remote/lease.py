"""Takes and watches leases on keys.

If several hosts lack a key's artifact or Triton kernel, one host takes the lease and compiles. The other hosts wait for
the object.

::

    <artifacts or kernels>/<key>/lease-<by>-<fence>     beside the key's objects, so one listing shows both

- ``by`` is the id of the holder's key. Hosts that trust this key wait.
- ``fence`` is 1, 2, ... A lease is created by a put that fails if the name exists. So a lease has one holder, on
  remotes that support such puts (bucket.py: create).
- A lease is *alive* while it grows: its holder adds a byte every ``beat_s``. Other hosts look only at the size of the
  lease, not at its content.
- A lease is *dead* for a host if the host has seen the same size of the lease for ``ttl_s`` seconds. This host then
  creates the next lease. So the clocks of two hosts are never compared. (Each look at the bucket's clock would
  be a request.)
- A holder that finds a lease with a higher fence stops renewing its own lease. If the holder puts an artifact
  nevertheless, the remote has one more object for the same variant. This is harmless.
- A lease is *empty* if its holder could not compile the key. Every host then compiles the key itself. If a host with
  the same signer puts the object later, this host removes the lease.
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
from precompiled.remote.envelope import ARTIFACT, KERNEL, Object
from precompiled.remote.errors import RemoteError
from precompiled.remote.transfer import Transfer

TTL_S = 30.0
BEATS = 3  # beats per ``ttl_s``
_LEASE = re.compile(r"lease-([0-9a-f]{16}|unsigned)-([0-9]{8})")


class Found(Enum):
    """The result of ``Claim.look``."""

    HERE = "here"  # an object that this host lacked was fetched
    MINE = "mine"  # this host holds the lease, so it compiles
    THEIRS = "theirs"  # another host holds the lease
    ALONE = "alone"  # no lease can be taken, or its holder could not compile: this host compiles without one


def is_lease(name: str) -> bool:
    return _LEASE.fullmatch(name) is not None


def remove_given_up(there: Transfer, key: str, kind: str = ARTIFACT) -> None:
    """Remove the empty leases of this host's signer, because the object is in the remote. Raises RemoteError."""
    folder = f"{form.FOLDERS[kind]}/{key}"
    for name, size in there.bucket.listed(folder).items():
        if size == 0 and (found := _LEASE.fullmatch(name)) and found[1] == there.trust.by:
            there.bucket.remove(f"{folder}/{name}")


class Claim:
    """One host's claim to the key of an artifact or a Triton kernel. ``kind``: which of the two. Call ``look`` until
    its result is not THEIRS. If the result is MINE, call ``beat``, and finally ``end`` or ``give_up``.

    All methods raise RemoteError. ``look`` also raises StoreError.
    """

    def __init__(
        self,
        there: Transfer,
        key: str,
        *,
        kind: str = ARTIFACT,
        ttl_s: float = TTL_S,
        may_hold: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._there, self._key, self._kind, self._clock = there, key, kind, clock
        self._folder = f"{form.FOLDERS[kind]}/{key}"
        self._may_hold = may_hold and bool(there.trust.by)
        self.ttl_s, self.beat_s = ttl_s, ttl_s / BEATS
        self.fence = 0  # the fence of the lease that this host holds; 0 if it holds none
        self._size = 0
        # Each signer's newest lease: fence, size, the seconds for which this host has seen that size, and the time of
        # the last look.
        self._seen: dict[str, tuple[int, int, float, float]] = {}

    def look(self) -> Found:
        """Fetch the key's objects from the remote. If none was fetched, take the lease unless another host holds it."""
        objects, leases = self._listed()
        if self._fetch(objects):
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
            return Found.THEIRS  # another host created the lease first
        self.fence, self._size = mine + 1, len(holder)
        # Since the listing, another host may have put an object and removed its lease.
        try:
            is_here = self._fetch()
        except Exception:
            with suppress(RemoteError):  # if the removal fails, other hosts wait until this lease expires
                self.end()
            raise
        if is_here:
            self.end()
            return Found.HERE
        self._there.missed()
        return Found.MINE

    def _fetch(self, objects: list[Object] | None = None) -> bool:
        if self._kind == KERNEL:
            return self._there.fetch_kernel(self._key, objects)
        return self._there.fetch(self._key, objects) > 0

    def _is_alive(self, by: str, fence: int, size: int) -> bool:
        now = self._clock()
        known = self._seen.get(by)
        if known is None or known[:2] != (fence, size):
            self._seen[by] = fence, size, 0.0, now
            return True
        # Only time between successful looks of this host counts towards the lease's expiry.
        unchanged = known[2] + min(now - known[3], self.beat_s)
        self._seen[by] = fence, size, unchanged, now
        return unchanged < self.ttl_s

    def beat(self) -> bool:
        """Show that the holder is alive. Returns whether the lease is still held."""
        _objects, leases = self._listed()
        if leases.get(self._there.trust.by, (0, 1))[0] > self.fence:
            self.fence = 0  # another host saw no progress, and took the lease
            return False
        self._size += 1
        self._there.bucket.write(self._path(self.fence), b"." * self._size)
        return True

    def end(self) -> None:
        """Remove the lease, because the object is in the remote or because this host does not compile the key."""
        if self.fence:
            for fence in range(1, self.fence + 1):
                self._there.bucket.remove(self._path(fence))
            self.fence = 0

    def give_up(self) -> None:
        """Mark the key as one that this host cannot compile, so that no other host waits for it."""
        if self.fence:
            self._there.bucket.write(self._path(self.fence), b"")
            self.fence = 0

    def _listed(self) -> tuple[list[Object], dict[str, tuple[int, int]]]:
        """The key's objects, and the newest lease of each trusted signer as (fence, size)."""
        objects: list[Object] = []
        leases: dict[str, tuple[int, int]] = {}
        for name, size in self._there.bucket.listed(self._folder).items():
            if (item := form.object_at(f"{self._folder}/{name}", size)) is not None:
                objects.append(item)
            elif (found := _LEASE.fullmatch(name)) and self._there.trust.believes(found[1]):
                leases[found[1]] = max(leases.get(found[1], (0, 0)), (int(found[2]), size))
        return objects, leases

    def _path(self, fence: int) -> str:
        return f"{self._folder}/lease-{self._there.trust.by}-{fence:08}"
