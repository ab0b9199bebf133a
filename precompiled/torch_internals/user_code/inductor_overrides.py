"""Finds decompositions and lowerings that the program has put into Inductor's tables for torch's operators.

Programs add entries by ``torch._inductor.decomposition.register_decomposition``, ``lowering.register_lowering``,
``register_pointwise``, ``make_fallback`` and ``kernel.custom_op.register_custom_op_autotuning``. A worker has torch's
own tables.

A function counts as torch's own if torch's files define it, and also define all functions that it wraps or holds. Only
a comparison with the first check of a table reveals two further changes: a removed entry, and a lowering that became a
call of eager code (``make_fallback``). Such changes before the first check are not detected (docs/reference/limits.md).
Torch adds entries to its tables but removes none.

The functions that make_fallback registers have the attribute "_is_fallback_handler" (torch/_inductor/lowering.py).

Private names: torch._inductor.lowering.{lowerings, user_lowerings (2.13, 2.15)},
torch._inductor.decomposition.{decompositions, extra_random_decomps}, torch._ops.OpOverload._schema,
torch._ops.OpOverloadPacket._qualified_op_name, torch._ops.HigherOrderOperator. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch

from precompiled.core.files import is_really_torchs

_TABLES = (
    ("lowering", "lowerings"),
    ("lowering", "user_lowerings"),
    ("decomposition", "decompositions"),
    ("decomposition", "extra_random_decomps"),
)

_Table = dict[Any, Callable[..., Any]]


class _Look:
    """The state of one table at the last check.

    ``first``: the operators that the table had at the first check, each with whether its lowering called eager code.
    """

    def __init__(self, first: dict[Any, bool]) -> None:
        self.first = first
        self.values: list[Any] = []
        self.overrides: dict[str, str] = {}


_looks: dict[str, _Look] = {}


def find_overrides(namespaces: Collection[str]) -> dict[str, str]:
    """Return the operators (aten::silu) whose entries the program has changed, each with a text about the change."""
    overrides: dict[str, str] = {}
    for module, name in _TABLES:
        # Until Inductor's module is imported, the table counts as empty.
        table: _Table | None = getattr(sys.modules.get(f"torch._inductor.{module}"), name, None)
        if table is not None:
            overrides.update(_of(f"torch._inductor.{module}.{name}", table, namespaces))
    return overrides


def _of(name: str, table: _Table, namespaces: Collection[str]) -> dict[str, str]:
    look = _looks.get(name)
    if look is None:
        look = _looks[name] = _Look({op: _is_fallback(rule) for op, rule in list(table.items())})
    values = list(table.values())
    if look.values != values:
        look.values = values
        look.overrides = {
            shown: f"{what} {name}"
            for op, what in _changes(name, table, look.first)
            if (shown := _torchs(op, namespaces)) is not None
        }
    return look.overrides


def _changes(name: str, table: _Table, first: dict[Any, bool]) -> Iterator[tuple[object, str]]:
    known: dict[int, bool] = {}
    for op, rule in list(table.items()):
        if name.endswith("user_lowerings") or not _is_torchs(rule, known):
            yield op, "a function that is not torch's is in"
        elif first.get(op) is False and _is_fallback(rule):
            yield op, "make_fallback has replaced torch's own in"
    for op in first.keys() - table.keys():
        yield op, "torch's own was taken out of"


def _torchs(op: object, namespaces: Collection[str]) -> str | None:
    """The name of an operator of torch or of Python (operator.add); None for other operators."""
    if isinstance(op, torch._ops.OpOverload):
        name = op._schema.name
    elif isinstance(op, torch._ops.OpOverloadPacket):
        name = op._qualified_op_name
    elif isinstance(op, torch._ops.HigherOrderOperator):
        # Graphs with a library's own higher-order operator are not sent.
        return op.name() if type(op).__module__.startswith("torch.") else None
    else:
        return str(getattr(op, "__name__", op))
    return name if name.partition("::")[0] in namespaces else None


def _is_fallback(rule: object) -> bool:
    return getattr(rule, "_is_fallback_handler", False) is True


def _is_torchs(rule: object, known: dict[int, bool]) -> bool:
    """Whether a rule, and all functions that it wraps or holds, are torch's own. ``known``: earlier answers, by id."""
    found = known.get(id(rule))
    if found is None:
        known[id(rule)] = True  # assume True while the rule's parts are checked, since a function may hold itself
        found = known[id(rule)] = _is_torchs_own(rule, known)
    return found


def _is_torchs_own(rule: object, known: dict[int, bool]) -> bool:
    if isinstance(rule, FunctionType):
        return is_really_torchs(rule.__code__.co_filename) and all(_is_torchs(held, known) for held in _held(rule))
    if isinstance(rule, MethodType):
        return _is_torchs(rule.__func__, known)
    if isinstance(rule, functools.partial):
        return all(_is_torchs(part, known) for part in (rule.func, *rule.args, *rule.keywords.values()))
    return not _is_of_a_program(rule)


def _held(function: FunctionType) -> Iterator[object]:
    if "__wrapped__" in vars(function):
        yield vars(function)["__wrapped__"]
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        if callable(content):
            yield content


def _is_of_a_program(rule: object) -> bool:
    """Whether ``rule`` is callable, and comes from none of torch, sympy, builtins and functools.

    The module of the rule's class decides, or the rule's own module if the rule is a class.
    """
    kind = rule if isinstance(rule, type) else type(rule)
    module = kind.__module__
    return callable(rule) and module.partition(".")[0] not in ("torch", "builtins", "functools", "sympy")
