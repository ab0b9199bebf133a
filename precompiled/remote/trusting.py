"""Which objects of a remote this host believes, and how it signs what it puts there."""

from __future__ import annotations

from typing import Protocol

from precompiled.remote.envelope import UNSIGNED, Envelope
from precompiled.remote.errors import RemoteError


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


def trust(unsigned: bool) -> Trust:
    """What this host believes. Raises RemoteError where that is nobody."""
    if unsigned:
        return Anybody()
    raise RemoteError(
        "a remote is code from elsewhere, and this host believes nobody's",
        "Set `remote_unsigned = true` if all who can write there may run code here",
        code="remote-unusable",
    )
