"""Describes what functions of the program read if Dynamo runs these functions during a trace (native_calls.py).

A description already covers the code of such a function, because Dynamo found the function through a described class or
function. This file describes the function's globals, arguments and closure completely, because no guard says which
parts matter. If a value has no description, this file refuses the trace.

Private names: torch._subclasses.fake_tensor.FakeTensor. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextlib
import dis
import enum
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from precompiled.core.definitions import codes_within
from precompiled.core.looks import attribute_of, is_a
from precompiled.packages.describe.codes import code_digest, globals_read, qualname
from precompiled.packages.describe.descriptions import MAX_DEPTH, Descriptions
from precompiled.packages.describe.errors import Mismatch, NotPortable
from precompiled.packages.describe.kinds import ATOMS, IMPURE, INSTALLATION, is_installed
from precompiled.packages.dynamo.native_calls import NativeCall, NativeCalls
from precompiled.packages.dynamo.trace_log import TraceLog

# A module, a name in it, and the description of its value.
Read = tuple[str, str, Any]

_CONTAINERS = (tuple, list, set, frozenset, dict)
_PLAIN = (
    *ATOMS,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    torch.dtype,
    torch.device,
    type,
    enum.Enum,
)
# Python's modules whose functions return the same values in each process.
_PURE = frozenset(
    """
    abc builtins collections collections_abc dataclasses enum functools itertools math operator re string types typing
    """.split()
)
_MEMO = type(functools.lru_cache(abs))
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def reads(noticed: NativeCalls, described: Descriptions) -> list[Read]:
    """Describe the globals that the functions in ``noticed`` read.

    ``described`` makes the descriptions, and must already cover the code of these functions. Raises NotPortable.
    """
    if noticed.problem is not None:
        raise noticed.problem
    found: dict[tuple[str, str], object] = {}
    calls = {(id(call.code), id(call.scope)): call for call in noticed.calls}.values()
    within = _Within()
    for call in noticed.calls:
        within.check(call, *call.arguments)
    for call in calls:
        for module, name, value in _globals_of(call):
            within.check(call, value)
            try:
                found[module, name] = described.value(value)
            except NotPortable as reason:
                raise _refused(call, f"reads the global {name}: {reason}") from reason
    for call in calls:
        if not call.by_pytree and code_digest(call.code) not in described.covered:
            raise _refused(call, "cannot be found by the name of a function or class")
    return [(module, name, fact) for (module, name), fact in sorted(found.items(), key=lambda item: item[0])]


def compare(kept: list[Read], described: Descriptions) -> None:
    """Raise Mismatch unless the globals have equal descriptions in this process."""
    for module, name, fact in kept:
        scope = vars(sys.modules[module]) if module in sys.modules else {}
        if name not in scope or described.value(scope[name]) != fact:
            raise Mismatch(f"the global {module}.{name} differs here, and a function that Dynamo calls reads it")


def instances(log: TraceLog, described: Descriptions) -> list[Any]:
    """Return the sources of those arguments of the noted calls that have a state of their own.

    The caller describes this state. If an argument has no source, the trace created it, or it is part of a described
    object. Raises NotPortable if an object has no description.
    """
    found: dict[str, object] = {}
    for call in log.native.calls:
        for value in _objects(call.arguments):
            met = log.met.get(id(value))
            if met is not None:
                if isinstance(value, torch.Tensor):
                    continue  # there are guards on a tensor's sizes and type
                name = min(met[1])
                found[name] = met[1][name]
                continue
            if isinstance(value, FakeTensor):
                continue
            try:
                described.value(value)
            except NotPortable as reason:
                raise _refused(call, f"gets an object that cannot be compared: {reason}") from reason
    return [found[name] for name in sorted(found)]


def _globals_of(call: NativeCall) -> Iterator[tuple[str, str, object]]:
    names = {name for code in codes_within(call.code) for name in globals_read(code)}
    module = call.scope.get("__name__")
    for name in sorted(_imported(call.code) | ((names & IMPURE) - call.scope.keys())):
        raise _refused(call, f"uses {name}")
    for name in sorted(names & call.scope.keys()):
        value = call.scope[name]
        if (elsewhere := _leads_elsewhere(value)) is not None:
            raise _refused(call, f"reads {elsewhere}")
        if type(value) is types.ModuleType:
            continue
        if is_a(value, type) and is_installed(value):
            continue
        if type(module) is not str or vars(sys.modules.get(module, types)) is not call.scope:
            raise _refused(call, f"reads the global {name}, which belongs to no module")
        yield module, name, value


class _Within(Descriptions):
    """Finds memos and impure functions inside containers, objects and classes.

    A description contains only the name of such a function, but the noted call may have called the function.
    """

    elsewhere: str | None = None  # the first such function, for the message

    def check(self, call: NativeCall, *values: object) -> None:
        """Raise NotPortable if one of ``values`` contains a memo or an impure function.

        ``values`` are the arguments of the call, or values that it reads.
        """
        for value in values:
            if not isinstance(value, torch.Tensor):
                with contextlib.suppress(NotPortable):  # the caller describes the value too, and raises the error
                    self.value(value)
        if self.elsewhere is not None:
            raise _refused(call, f"may read {self.elsewhere}")

    def thing(self, value: object, depth: int = 0) -> object:
        self._look(value)
        return super().thing(value, depth)

    def _member(self, value: object, plain: bool, owner: type) -> str:
        if not is_installed(owner):
            self._look(value)
        return super()._member(value, plain, owner)

    def _look(self, value: object) -> None:
        if self.elsewhere is None and is_a(value, (_MEMO, *_FUNCTIONS)):
            self.elsewhere = _leads_elsewhere(value)


def _imported(code: types.CodeType) -> set[str]:
    """The modules that code imports when it runs, except those of _PURE."""
    within = (item for inner in codes_within(code) for item in dis.get_instructions(inner))
    return {item.argval for item in within if item.opname == "IMPORT_NAME" and item.argval not in _PURE}


def _leads_elsewhere(value: Any) -> str | None:
    """Return a phrase for ``value`` if code can get undescribed values from it; else None.

    Three kinds of objects give code such values: a module, an impure object of Python's or torch's (``os.getenv``, a
    path, a lock), and a memo. If a memo has cached the result, its function does not run.
    """
    if type(value) is types.ModuleType:
        return None if value.__name__ in _PURE else f"the module {value.__name__}"
    if type(value) is _MEMO:
        return f"the memo of {value.__wrapped__.__qualname__}"
    named = value if is_a(value, (type, *_FUNCTIONS)) else type(value)
    module = attribute_of(named, "__module__") or getattr(getattr(named, "__self__", None), "__name__", "")
    top = module.partition(".")[0] if type(module) is str else ""
    is_a_torch_type = top == "torch" and is_a(named, type)
    if top not in INSTALLATION or top.lstrip("_") in _PURE or is_a_torch_type:
        return None
    return f"{module}.{named.__qualname__}"


def _objects(values: Any, depth: int = 0) -> Iterator[object]:
    """Yield the values that have a state of their own, also those inside containers.

    The description of a class does not cover this state.
    """
    for value in values:
        kind = type(value)
        if kind in _CONTAINERS and depth < MAX_DEPTH:
            yield from _objects([*value, *value.values()] if kind is dict else value, depth + 1)
        elif not issubclass(kind, _PLAIN):
            yield value


def _refused(call: NativeCall, why: str) -> NotPortable:
    return NotPortable(
        f"during the trace, Dynamo called {qualname(call.code)}, and that function {why}",
        "Compute the value before the compiled function, and pass it as an argument",
        code="package-native-call",
    )
