"""Declares the methods of a graph's eager code that a Dispatch (dispatch.py) calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class EagerRunner(Protocol):
    """Runs a graph eagerly (torch_internals/eager/stand_in.py)."""

    def __call__(self, *args: object) -> object:
        """Returns the graph's outputs."""

    def repeated(self, args: Sequence[object]) -> tuple[object | None, bool]:
        """Determine whether a checkpoint runs this call twice and expects the same result in both runs.

        Returns a pair. First: the call's keeper (safe_points.py), or None if the call runs once. Second: whether this
        is the second run.
        """

    def must_not_mix(self, args: Sequence[object]) -> bool:
        """Whether this call and another call must draw the same random numbers. Eager and compiled code draw different
        numbers, so both must run eager, or both compiled.
        """

    def is_recorded(self, args: Sequence[object]) -> bool:
        """Whether autograd records this call, so that a backward may follow."""

    def looks_for_nan(self, args: Sequence[object]) -> bool:
        """Whether autograd checks the gradients of each operator for NaN in this call.

        Such a call waits for compiled code, which autograd checks as one operator.
        """

    def before(self, args: Sequence[object]) -> Callable[[Exception], bool]:
        """Prepare a run. Returns a function that undoes the run after an exception.

        That function takes the exception, and returns false if it cannot undo the run.
        """
