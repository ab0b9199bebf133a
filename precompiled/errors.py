"""Typed errors: what is wrong, and what to do next.

Every error has a stable ``code`` (for programs and tests), a ``message`` (what is wrong) and an ``action``
(what the user can do). Client processes never see these raised out of a compiled call: ``backend.py`` catches
them, falls back, and counts the ``code`` as the reason.
"""

from __future__ import annotations


class PrecompiledError(Exception):
    """Base of everything this project raises on purpose."""

    code = "error"

    def __init__(self, message: str, action: str = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.action = action
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return f"{self.message}. {self.action}" if self.action else self.message


class ConfigError(PrecompiledError):
    """A setting has a value that cannot be used."""

    code = "bad-config"


class WireError(PrecompiledError):
    """A frame is not a message of this protocol version."""

    code = "bad-message"


class DaemonError(PrecompiledError):
    """The daemon cannot be reached, or refused the request; ``code`` says which."""

    code = "no-daemon"


class Bypass(PrecompiledError):
    """This graph is not sent to the daemon; ``code`` is the stable reason."""

    code = "bypass"


class StoreError(PrecompiledError):
    """The store cannot be read or written."""

    code = "store"


class UntrustedStore(StoreError):
    """A directory or file of the store has an owner or a mode that lets somebody else put code into it."""

    code = "store-untrusted"


class CorruptArtifact(StoreError):
    """An artifact does not match its manifest (truncated, altered, or of another format version)."""

    code = "artifact-corrupt"


class CompileFailed(PrecompiledError):
    """A worker could not turn a graph into an artifact."""

    code = "compile-failed"


class PackageError(PrecompiledError):
    """A package file cannot be made, or is not for this function, source or machine; ``code`` says which."""

    code = "package"
