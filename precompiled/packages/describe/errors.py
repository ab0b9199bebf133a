"""Defines the errors for a trace that cannot be kept and for an entry that does not fit."""

from __future__ import annotations

from precompiled.core.errors import PrecompiledError


class NotPortable(PrecompiledError):
    """A traced object cannot be described for another process; ``code`` says why."""

    code = "package-not-portable"


class Mismatch(Exception):
    """The entry does not fit the live frame. ``guard``: the index of the failed guard, if any."""

    def __init__(self, message: str, guard: int | None = None) -> None:
        super().__init__(message)
        self.guard = guard
