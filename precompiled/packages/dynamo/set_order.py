"""Finds the sets whose order in a trace is the same in every process.

Dynamo keeps a set's items as a dictionary's keys. If a program makes a set by ``{a, b}`` or ``set()``, and adds items
one by one or from a list, then Dynamo keeps the items in the order of their addition, and iterates over them in this
order. Python does not. Items from another set have the order of that set.

This file assumes nothing about how Dynamo changes a set. The order is known only while the set has exactly the items
whose additions this file saw.

Private names: torch._dynamo.variables.{ConstantVariable, SetVariable.__init__, SetVariable.call_method,
SetVariable.items}, torch._dynamo.variables.lists.BaseListVariable.items,
torch._dynamo.symbolic_convert.InstructionTranslatorBase.{BUILD_SET, f_code},
torch._dynamo.variables.builtin.BuiltinVariable.call_set, torch._dynamo.polyfills. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch._dynamo import polyfills
from torch._dynamo.variables import ConstantVariable, SetVariable
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.lists import BaseListVariable

from precompiled.core import files
from precompiled.packages.dynamo.contained_notes import dynamos_frames
from precompiled.packages.dynamo.trace_log import TraceLog
from precompiled.packages.dynamo.untraced import unlazy

_DISPLAY = "BUILD_SET"
_FRAMES = 4  # limit of the frames between Dynamo's BUILD_SET and the variable's constructor
_MAX_ITEMS = 256  # each added item is compared with all items
_REMOVE = ("discard", "remove")


def replacements() -> Iterator[tuple[object, str, Callable[..., object]]]:
    """Like ``ordered.replacements``."""
    for name, with_ in (("__init__", _made), ("call_method", _changed)):  # some versions define them in a base class
        yield next(kind for kind in SetVariable.__mro__ if name in vars(kind)), name, with_
    yield BuiltinVariable, "call_set", _made_of


def is_torchs(tx: object) -> bool:
    """Whether the traced code is torch's and gives the same result for any order of a set.

    True for Dynamo's own code for methods of sets, and for modules of torch (functional_call looks for tied weights).
    False for Dynamo's code for other functions, such as reduce.
    """
    code = getattr(tx, "f_code", None)
    if code is None:
        return False
    if code.co_filename == polyfills.__file__:
        return bool(code.co_name.startswith("set_"))
    return files.is_torchs(code.co_filename) and os.path.dirname(polyfills.__file__) not in code.co_filename


def is_known(noted: TraceLog, variable: object) -> bool:
    """Whether the items of a set's variable are in the order of their addition."""
    return _order(noted, variable) is not None


def _order(noted: TraceLog, variable: SetVariable) -> list[Any] | None:
    items, order = noted.in_order.get(id(variable.items), (None, []))
    if items is not variable.items:
        return None
    if not _same(list(items), order):
        _forget(noted, variable)
        return None
    return list(order)


def _forget(noted: TraceLog, variable: SetVariable) -> None:
    """Forget the order permanently, because the items could later be in the recorded order by chance."""
    noted.in_order.pop(id(variable.items), None)


def _same(found: Sequence[object], wanted: Sequence[object]) -> bool:
    return len(found) == len(wanted) and all(left is right for left, right in zip(found, wanted, strict=True))


def _know(noted: TraceLog, variable: SetVariable) -> None:
    noted.in_order[id(variable.items)] = variable.items, list(variable.items)


def _made(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Record ``{a, b}``."""

    def __init__(self: object, *args: object, **kwargs: object) -> None:
        original(self, *args, **kwargs)
        noted = now()
        if noted is None or not isinstance(self, SetVariable) or self.source is not None:
            return
        callers = itertools.islice(dynamos_frames(), _FRAMES)
        if any(frame.f_code.co_name == _DISPLAY for frame in callers):
            _know(noted, self)

    return __init__


def _made_of(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Record the set that ``set()`` or ``set(names)`` creates."""

    def call_set(self: object, tx: object, *args: object, **kwargs: object) -> object:
        noted = now()
        coming: list[object] | None = None if args else []
        if noted is not None and len(args) == 1 and not is_torchs(tx):
            coming = _coming(noted, "update", args)
        found = original(self, tx, *args, **kwargs)
        if noted is None or not isinstance(found, SetVariable):
            return found
        if _is_expected(list(found.items), [], "update", coming):
            _know(noted, found)
        return found

    return call_set


def _changed(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    def call_method(self: Any, tx: object, name: str, args: object, *more: object, **kwargs: object) -> object:
        noted, order, coming = now(), None, None
        # Dynamo's code for update() adds the items of any set one by one.
        if noted is not None and isinstance(self, SetVariable) and not is_torchs(tx):
            order = _order(noted, self)
            coming = _coming(noted, name, args) if order is not None else None
        found = original(self, tx, name, args, *more, **kwargs)
        if noted is not None and order is not None:
            if _is_expected(list(self.items), order, name, coming):
                _know(noted, self)
            elif not _same(list(self.items), order):
                _forget(noted, self)
        return found

    return call_method


def _coming(noted: TraceLog, name: str, args: Any) -> list[object] | None:
    """The variables that a method call adds to a set, in order. None if the order is unknown."""
    if name == "add":
        return list(args)
    given = unlazy(args[0]) if name == "update" and len(args) == 1 else None
    if isinstance(given, BaseListVariable):
        return list(given.items)
    if isinstance(given, SetVariable):
        order = _order(noted, given)
        return None if order is None else [key.vt for key in order]
    return None


def _is_expected(found: list[Any], order: list[Any], name: str, coming: Sequence[object] | None) -> bool:
    """Whether a set has the expected keys: the earlier keys plus the added keys, or minus the removed key."""
    if name in _REMOVE:
        return _same(found, [key for key in order if any(key is left for left in found)])
    if coming is None or len(order) + len(coming) > _MAX_ITEMS or not _same(found[: len(order)], order):
        return False
    added: list[Any] = []
    for variable in coming:
        if not any(_alike(key.vt, variable) for key in order) and not any(_alike(one, variable) for one in added):
            added.append(variable)
    new = found[len(order) :]
    return len(new) == len(added) and all(_alike(key.vt, one) for key, one in zip(new, added, strict=True))


def _alike(left: object, right: object) -> bool:
    """Whether two (perhaps lazy) variables are equal. Creates no constants, because that would read sets."""
    left, right = _text_or_number(left), _text_or_number(right)
    return left is right or (type(left) is type(right) and isinstance(left, (str, int)) and left == right)


def _text_or_number(variable: object) -> object:
    variable = unlazy(variable)
    return variable.value if isinstance(variable, ConstantVariable) else variable
