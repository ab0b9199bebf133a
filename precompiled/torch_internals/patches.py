"""Replaces functions of torch, and restores them. All code of this project that replaces torch's functions uses this
file.

``in_force`` lists the functions that are replaced now. tests/lint/test_no_other_patches.py fails if code replaces
functions in any other way.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Wrap = Callable[[Any], Any]
_MISSING = object()
_in_force: list[_Patch] = []


@dataclass(frozen=True, eq=False)
class _Patch:
    owner: Any  # a module or a class
    name: str
    # The value in ``vars(owner)``; _MISSING if the name is inherited, or made by the module's ``__getattr__``.
    original: object
    replacement: object

    def is_replaced(self) -> bool:
        return vars(self.owner).get(self.name) is not self.replacement

    def undo(self) -> None:
        if self.original is _MISSING:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.original)
        _in_force.remove(self)

    def __str__(self) -> str:
        owner = self.owner
        place = f"{owner.__module__}.{owner.__qualname__}" if isinstance(owner, type) else owner.__name__
        return f"{place}.{self.name}"


class Patches:
    """Replaces functions of torch for one part of this project, and restores them in reverse order.

    The object is true while functions are replaced. A ``with`` block restores the functions at its end.
    """

    def __init__(self) -> None:
        self._patches: list[_Patch] = []

    def __bool__(self) -> bool:
        return bool(self._patches)

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def replace(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Replace ``owner.name`` by ``wrap(original)``. A static method stays a static method.

        Raises AttributeError if ``owner`` lacks the name.
        """
        replacement, own = wrap(getattr(owner, name)), vars(owner).get(name, _MISSING)
        if isinstance(own, staticmethod) and not isinstance(replacement, staticmethod):
            replacement = staticmethod(replacement)
        setattr(owner, name, replacement)
        self._patches.append(_Patch(owner, name, own, replacement))
        _in_force.append(self._patches[-1])

    def are_replaced(self) -> bool:
        """Whether other code has since replaced one of these functions."""
        return any(patch.is_replaced() for patch in self._patches)

    def undo(self) -> None:
        """Restore all functions, the last one first, because two patches may replace one function. Idempotent."""
        while self._patches:
            self._patches.pop().undo()


def in_force() -> list[str]:
    """Names of the torch functions that are replaced in this process now, with their modules or classes."""
    return sorted(map(str, _in_force))
