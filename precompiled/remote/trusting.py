"""Which objects of a remote this host believes, and how it signs what it puts there."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from precompiled.remote import keys
from precompiled.remote.envelope import UNSIGNED, Envelope
from precompiled.remote.errors import Refused, RemoteError


class Trust(Protocol):
    by: str  # the id that stands in what this host puts there; "" where it may put nothing

    def believes(self, by: str) -> bool:
        """Whether objects that say to be from there are worth a look."""

    def check(self, envelope: Envelope) -> None:
        """Raise Refused unless the envelope is believed."""

    def signed(self, envelope: Envelope) -> Envelope:
        """The envelope, signed."""


class Anybody:
    """For ``remote_unsigned = true``: whoever can write to the remote is believed."""

    by = UNSIGNED

    def believes(self, by: str) -> bool:
        return True

    def check(self, envelope: Envelope) -> None:
        pass

    def signed(self, envelope: Envelope) -> Envelope:
        return envelope


class Keys:
    """What is signed by this user's own key, or by one that he believes."""

    def __init__(self) -> None:
        self._own = keys.own()
        self._keys = keys.believed()
        self.by = ""
        if self._own is not None:
            mine = keys.public_of(self._own)
            self.by = mine.id
            self._keys[mine.id] = mine
        if not self._keys:
            raise RemoteError(
                "a remote is code from elsewhere, and this host believes nobody's",
                "`precompiled keys new` here or on another host, and `precompiled keys trust` where it is to be "
                "believed; or set `remote_unsigned = true` if all who can write there may run code here",
                code="remote-unusable",
            )

    def believes(self, by: str) -> bool:
        return by in self._keys

    def check(self, envelope: Envelope) -> None:
        if envelope.by == UNSIGNED or not envelope.signature:
            raise Refused(f"the object of {envelope.name[:80]} is not signed", code="remote-unsigned")
        key = self._keys.get(envelope.by)
        if key is None or not keys.verifies(key, envelope.signed(), envelope.signature):
            raise Refused(
                f"the object of {envelope.name[:80]} has no signature of a key that this host believes",
                code="remote-untrusted",
            )

    def signed(self, envelope: Envelope) -> Envelope:
        if self._own is None:
            raise RemoteError("there is no key here to sign with", "`precompiled keys new`", code="remote-unusable")
        return dataclasses.replace(envelope, signature=keys.sign(self._own, envelope.signed()))


def trust(unsigned: bool) -> Trust:
    """What this host believes. Raises RemoteError where that is nobody, UntrustedStore where keys may be others'."""
    return Anybody() if unsigned else Keys()
