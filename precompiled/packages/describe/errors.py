"""Defines the errors that say why a trace cannot be kept and why an entry is not used."""

from __future__ import annotations

from precompiled.core.errors import PrecompiledError


class NotPortable(PrecompiledError):
    """A traced object cannot be described for another process; ``code`` says why."""

    code = "package-not-portable"


class Mismatch(Exception):
    """The entry does not fit the live frame. ``guard`` is the number of the guard that failed, if one did."""

    def __init__(self, message: str, guard: int | None = None) -> None:
        super().__init__(message)
        self.guard = guard
