"""Defines the errors of a remote. Only the command line shows them; other callers continue without the remote."""

from __future__ import annotations

from precompiled.core.errors import PrecompiledError


class RemoteError(PrecompiledError):
    """The remote does not answer (``remote-unreachable``, ``remote-timeout``), or its settings or credentials are
    unusable (``remote-unusable``).
    """


class ObjectRejected(RemoteError):
    """One object is rejected: ``remote-corrupt``, ``remote-unsigned``, ``remote-untrusted``."""
