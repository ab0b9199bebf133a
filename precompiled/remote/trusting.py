"""Decides which objects of a remote this host trusts, and signs the objects that it puts."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from precompiled.remote import keys
from precompiled.remote.envelope import UNSIGNED, Envelope
from precompiled.remote.errors import ObjectRejected, RemoteError


class Trust(Protocol):
    by: str  # the id in objects that this host puts; "" if it puts none

    def believes(self, by: str) -> bool:
        """Whether this host should read objects whose names contain this signer's id: ``check`` may then trust them."""

    def check(self, envelope: Envelope) -> None:
        """Raise ObjectRejected unless the envelope is trusted."""

    def signed(self, envelope: Envelope) -> Envelope:
        """Return the envelope with a signature."""


class Anybody:
    """Trusts every object, and so every writer of the remote. Used with ``remote_unsigned = true``."""

    by = UNSIGNED

    def believes(self, by: str) -> bool:
        return True

    def check(self, envelope: Envelope) -> None:
        pass

    def signed(self, envelope: Envelope) -> Envelope:
        return envelope


class Keys:
    """Trusts objects that are signed with this user's own key, or with a key that the user trusts."""

    def __init__(self) -> None:
        self._own = keys.own()
        self._keys = keys.trusted_keys()
        self.by = ""
        if self._own is not None:
            mine = keys.public_of(self._own)
            self.by = mine.id
            self._keys[mine.id] = mine
        if not self._keys:
            raise RemoteError(
                "a remote has code from other hosts, and this host trusts no key",
                "Run `precompiled remote keys new` on one host, and `precompiled remote keys trust` on the others. Or "
                "set `remote_unsigned = true` if each user who can write to the remote may run code here",
                code="remote-unusable",
            )

    def believes(self, by: str) -> bool:
        return by in self._keys

    def check(self, envelope: Envelope) -> None:
        if envelope.by == UNSIGNED or not envelope.signature:
            raise ObjectRejected(f"the object of {envelope.name[:80]} is not signed", code="remote-unsigned")
        key = self._keys.get(envelope.by)
        if key is None or not keys.verifies(key, envelope.signed(), envelope.signature):
            raise ObjectRejected(
                f"the object of {envelope.name[:80]} has no signature by a key that this host trusts",
                code="remote-untrusted",
            )

    def signed(self, envelope: Envelope) -> Envelope:
        if self._own is None:
            raise RemoteError(
                "this host has no key to sign with", "Run `precompiled remote keys new`", code="remote-unusable"
            )
        return dataclasses.replace(envelope, signature=keys.sign(self._own, envelope.signed()))


def trust(unsigned: bool) -> Trust:
    """The trust of this host. Raises RemoteError if this host trusts no key, UntrustedStore if another user could have
    written the keys.
    """
    return Anybody() if unsigned else Keys()
