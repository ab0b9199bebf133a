"""Notes that a trace depends on the order of a set, or on the keys of a dictionary, without a guard.

Sets: Dynamo guards on the content of a set, and rarely on its order. If the items are texts or objects, the order
differs between processes, so a trace in one order does not serve a process with a different order. So when a trace
reads all items of a set, this file checks the set's variable. This includes sets without a source, which set operations
(``a - b``) make. Sets that the trace itself fills are exempt (set_order.py).

Dictionaries: Dynamo has no guard on the keys if the trace makes a list of the dictionary (``[*table]``), or if the
dictionary is the ``__dict__`` of an object.

Private names: torch._dynamo.variables.{SetVariable, FrozensetVariable},
torch._dynamo.variables.lists.BaseListVariable.list_extend (2.15),
torch._dynamo.variables.base.VariableTracker.{unpack_var_sequence, tp_iter_impl (2.13, 2.15), call_method,
as_python_constant, repr_impl (2.13), tp_repr_impl (2.15), debug_repr (2.11), items, source},
torch._dynamo.variables.dicts.ConstDictVariable, torch._dynamo.variables.lazy.LazyVariableTracker.{is_realized,
realize}, torch._dynamo.source.AttrSource, torch._dynamo.variables.builtin.BuiltinVariable.{call_sorted, call_min,
call_max, call_set, call_frozenset, call_custom_dict_fromkeys (2.11)},
torch._dynamo.variables.builtin.DictBuiltinVariable.call_custom_dict_fromkeys (2.13, 2.15),
torch._dynamo.variables.dicts.SideEffectsProxyDict.{__iter__, item} (2.13, 2.15). Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch._dynamo.variables.dicts as dynamo_dicts
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import FrozensetVariable, SetVariable
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.dicts import ConstDictVariable
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch._dynamo.variables.lists import BaseListVariable

from precompiled.packages.describe.codes import is_hashed_alike
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo import set_order
from precompiled.packages.dynamo.contained_notes import dynamos_frames
from precompiled.packages.dynamo.trace_log import TraceLog
from precompiled.packages.dynamo.untraced import constant, unlazy

_SETS = (SetVariable, FrozensetVariable)
_WITH_METHODS = (ConstDictVariable, BaseListVariable)
_GOES_THROUGH = ("unpack_var_sequence", "tp_iter_impl")
_WRITES = ("repr_impl", "tp_repr_impl", "debug_repr")
# Methods of a set's variable whose result depends on the order.
_IN_ORDER = ("pop", "__repr__", "__str__", "__format__")
# Files whose functions use a constant set only to make another set, to compare the set, or to test whether it is empty.
_ALGEBRA = ("sets.py", "dicts.py", "base.py", "hashable.py", "codegen.py")
# Callers that test whether a set is empty (``inner`` is a conditional jump).
_ASKS = ("generic_bool", "generic_is_true", "inner")
_PASSES_ON = "realize_and_forward"  # this method of a lazy variable calls the realized variable's method
# _OF_A_CELL names Dynamo's function that rebuilds a Python function with its closure. _ASKS_FOR_THE_FILE names a caller
# that needs only the file name of the rebuilt function.
_OF_A_CELL, _ASKS_FOR_THE_FILE = "_get_function_impl", "check_verbose"
_FROM_KEYS = "call_custom_dict_fromkeys"
# Functions whose result does not depend on the order of a set, unless a key makes two items equal.
_SORTS = ("call_sorted", "call_min", "call_max")
_MAKES_A_SET = ("call_set", "call_frozenset")


def replacements() -> Iterator[tuple[object, str, Callable[..., object]]]:
    """For each function of Dynamo that needs a wrapper (trace_patches), yield owner, name, and the wrapper's maker."""
    for kind in kinds(VariableTracker):
        if issubclass(kind, (*_SETS, ConstDictVariable)) or any(issubclass(one, kind) for one in _SETS):
            for names, note in ((_GOES_THROUGH, _gone_through), (_WRITES, _read)):
                for name in names:
                    if name in vars(kind):
                        yield kind, name, _before(note)
            if "as_python_constant" in vars(kind):
                yield kind, "as_python_constant", _before(_as_a_constant)
        if "call_method" in vars(kind) and (kind is VariableTracker or issubclass(kind, (*_WITH_METHODS, *_SETS))):
            yield kind, "call_method", _before(_asked)
        if _FROM_KEYS in vars(kind):
            yield kind, _FROM_KEYS, _before(_of_keys)
    if "list_extend" in vars(BaseListVariable):
        yield BaseListVariable, "list_extend", _before(_extended)
    for name in (*_SORTS, *_MAKES_A_SET):
        if name in vars(BuiltinVariable):
            yield BuiltinVariable, name, _in_any_order
    if hasattr(dynamo_dicts, "SideEffectsProxyDict"):
        yield dynamo_dicts.SideEffectsProxyDict, "__iter__", _before(_names)


def kinds(kind: type) -> Iterator[type]:
    """Yield a class and all its subclasses."""
    yield kind
    inner: type
    for inner in kind.__subclasses__():
        yield from kinds(inner)


def _is_set(variable: object) -> bool:
    return isinstance(variable, _SETS) and variable.python_type() in (set, frozenset)


def _all_of(noted: TraceLog, variable: Any, *, item_by_item: bool = False) -> None:
    """Refuse the trace if it reads all items of a set whose order differs between processes.

    Sets of numbers are exempt, because unguarded.py describes their order. ``item_by_item``: whether Dynamo reads the
    items in its variable's order. If so, sets whose order is known (set_order.py) are exempt as well.
    """
    if noted.in_any_order or not _is_set(variable) or len(variable.items) < 2:
        return
    if item_by_item and set_order.is_known(noted, variable):
        return
    if all(is_hashed_alike(constant(item.vt)) for item in variable.items):
        return
    which = f"{variable.source.name} is a set" if variable.source is not None else "a set that a trace makes"
    noted.problem = NotPortable(
        f"{which}, whose order differs between processes",
        "Use a tuple where the order matters",
        code="package-set-order",
    )


def _before(note: Callable[..., None]) -> Callable[..., object]:
    """Return a function that makes wrappers. A wrapper calls ``note`` with the log and the arguments, then the
    original.
    """

    def wrapper(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            noted = now()
            if noted is not None:
                note(noted, *args, **kwargs)
            return original(*args, **kwargs)

        return call

    return wrapper


def _gone_through(noted: TraceLog, variable: object, tx: object = None, *_: object, **__: object) -> None:
    if not set_order.is_torchs(tx):
        _all_of(noted, variable, item_by_item=True)


def _read(noted: TraceLog, variable: object, tx: object = None, *_: object, **__: object) -> None:
    if not set_order.is_torchs(tx):
        _all_of(noted, variable)


def _as_a_constant(noted: TraceLog, variable: object, *_: object, **__: object) -> None:
    """Refuse the trace if Dynamo converts a variable to a Python set, for example to make a text or list from the set.

    Callers for which the order does not matter may get the set.
    """
    callers = (frame.f_code for frame in dynamos_frames() if frame.f_code.co_name != _PASSES_ON)
    code = next(callers)
    if code.co_name == _OF_A_CELL and _ASKS_FOR_THE_FILE in [outer.co_name for outer in itertools.islice(callers, 3)]:
        return
    if os.path.basename(code.co_filename) not in _ALGEBRA and code.co_name not in _ASKS:
        _all_of(noted, variable)


def _asked(noted: TraceLog, variable: object, tx: object, name: str, args: object, *_: object, **__: object) -> None:
    if name == "__iter__":
        _gone_through(noted, variable, tx)
    elif name in _IN_ORDER and not (name == "pop" and args):  # torch 2.11 implements discard() by pop() of a key
        _read(noted, variable, tx)
    elif name == "extend" and isinstance(variable, BaseListVariable):
        _in_a_list(noted, args)


def _extended(noted: TraceLog, _list: object, _tx: object, args: object, *_: object, **__: object) -> None:
    _in_a_list(noted, args)


def _of_keys(noted: TraceLog, _tx: object, _kind: object, *args: object, **_: object) -> None:
    """Record a call of ``dict.fromkeys(table)``. Torch 2.15 takes all keys of ``table`` at once."""
    _in_a_list(noted, args[:1], item_by_item=False)


def _names(noted: TraceLog, items: Any) -> None:
    if items.item.source is not None:
        noted.wholes.append((AttrSource(items.item.source, "__dict__"), "keys"))


def _in_a_list(noted: TraceLog, args: Any, *, item_by_item: bool = True) -> None:
    """Record ``[*table]``, ``(*table,)``, ``list(table)``, ``items.extend(table)``."""
    for arg in args:
        given = arg.realize() if isinstance(arg, LazyVariableTracker) and arg.is_realized() else arg
        _all_of(noted, given, item_by_item=item_by_item)
        if isinstance(given, ConstDictVariable) and given.source is not None and not _is_set(given):
            noted.wholes.append((given.source, "keys"))


def _in_any_order(original: Callable[..., object], now: Callable[[], TraceLog | None]) -> Callable[..., object]:
    """Let a function read any set, because its result does not depend on the order of its argument.

    A generator over a set is not exempt: it may add operators to the graph in the set's order.
    """

    def call(self: object, tx: object, *args: object, **kwargs: object) -> object:
        noted = now()
        given = unlazy(args[0]) if args else None
        if noted is None or "key" in kwargs or not (_is_set(given) or type(given) in (set, frozenset)):
            return original(self, tx, *args, **kwargs)
        noted.in_any_order += 1
        try:
            return original(self, tx, *args, **kwargs)
        finally:
            noted.in_any_order -= 1

    return call
