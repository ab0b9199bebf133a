"""Why a trace cannot be kept, and why an entry is not used."""

from __future__ import annotations

from precompiled.core.errors import PrecompiledError


class NotPortable(PrecompiledError):
    """What was traced cannot be described for another process; ``code`` says why."""

    code = "package-not-portable"


class Mismatch(Exception):
    """The live frame is not what the entry is for; ``guard``: the number of the guard that says so, if one does."""

    def __init__(self, message: str, guard: int | None = None) -> None:
        super().__init__(message)
        self.guard = guard
