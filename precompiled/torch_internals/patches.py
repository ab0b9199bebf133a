"""Replaces functions of torch, and restores them.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Wrap = Callable[[Any], Any]


class Patches:
    """The replaced functions, in order. True while there are any."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        return bool(self._undo)

    def replace(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Replace ``owner.name`` by ``wrap(original)``. Raises AttributeError if ``owner`` lacks the name."""
        original = getattr(owner, name)
        setattr(owner, name, wrap(original))
        self._undo.append(lambda: setattr(owner, name, original))

    def undo(self) -> None:
        """Restore all functions, the last one first, because two patches may replace one function. Idempotent."""
        while self._undo:
            self._undo.pop()()
