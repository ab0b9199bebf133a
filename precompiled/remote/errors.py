"""What may be wrong with a remote. Nobody but the command line raises it to people: the others go on as on one host."""

from __future__ import annotations

from precompiled.core.errors import PrecompiledError


class RemoteError(PrecompiledError):
    """The remote does not answer (``remote-unreachable``, ``remote-timeout``), or cannot be used as it is set up
    (``remote-unusable``).
    """


class Refused(RemoteError):
    """One object is not taken: ``remote-corrupt``, ``remote-unsigned``, ``remote-untrusted``."""
