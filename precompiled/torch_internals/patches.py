"""Replacing functions of torch's, and giving them back: one way for all that do.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Wrap = Callable[[Any], Any]


class Patches:
    """What was replaced, in order. True while there is any."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def replace(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Put ``wrap(what is there)`` in the place of ``owner.name``. Raises AttributeError where there is nothing."""
        original = getattr(owner, name)
        setattr(owner, name, wrap(original))
        self._undo.append(lambda: setattr(owner, name, original))

    def undo(self) -> None:
        """Give all back, the last first: two patches may be of one function. Idempotent."""
        while self._undo:
            self._undo.pop()()
