"""Sends the source of tensor subclasses that a worker cannot import (in ``__main__`` or in a function).

A compile needs the methods that take a subclass apart, put it together, and implement its operators. The methods are
sent, and are in the key, with everything that they read (program_units.py). If torch keeps facts about a class outside
the class (operator rules, an entry in pytree), the class is refused.

A worker creates the class for one compile only, because a method may change the values that it reads. A pickle of the
compile's output names the class by the digest of the class's unit, and not by its module. A process can load the output
only if it has the class.

Private names: torch._library.simple_registry.{singleton._data, GenericTorchDispatchRuleHolder.find},
torch._ops._higher_order_ops, torch._ops.HigherOrderOperator.python_key_table, torch.utils._pytree.{SUPPORTED_NODES,
CONSTANT_NODES}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import torch
from torch._library import simple_registry
from torch.utils import _pytree as pytree

from precompiled.core.errors import Bypass
from precompiled.torch_internals.user_code import program_units, source_units
from precompiled.torch_internals.user_code.program_source import Source, is_nowhere, refuse
from precompiled.torch_internals.user_code.source_units import Unit

CODE = "unsupported-input"
PREFIX = "class "  # prefix of a class's name in the list of modules and operators that a graph needs
Classes = Mapping[str, type]  # maps the digest of a class's unit to the class
NONE: Classes = MappingProxyType({})


class Described:
    """Those classes of one graph's inputs that the program itself defines."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.classes: dict[str, type] = {}

    def name(self, kind: type, modules: dict[str, str]) -> list[str]:
        """An input's reference to its class. Adds to ``modules`` what a worker needs for the class. Raises Bypass."""
        unit = _unit(kind)
        known = source_units.digest(unit)
        if known not in self.classes:
            self.units.append(unit)
        if self.classes.setdefault(known, kind) is not kind:
            _refuse(kind, "the inputs have two classes with this source")
        modules.update(program_units.worker_needs(unit))
        modules[f"{PREFIX}{kind.__qualname__}"] = known
        return ["", kind.__qualname__, known]


def create_classes(units: Iterable[Unit]) -> dict[str, type]:
    """Create the classes that ``Described.units`` describes."""
    return {source_units.digest(unit): _made(unit) for unit in units}


def find(modules: Mapping[str, str]) -> dict[str, type]:
    """In the user's process, find the classes that ``Described.name`` named.

    Raises ValueError if a class has changed.
    """
    wanted = {name.removeprefix(PREFIX): digest for name, digest in modules.items() if name.startswith(PREFIX)}
    return {digest: _found(name, digest) for name, digest in wanted.items()}


def dumps(value: object, classes: Classes) -> bytes:
    """Pickle a value. The pickle refers to these classes by their digests."""
    buffer = io.BytesIO()
    _Pickler(buffer, classes).dump(value)
    return buffer.getvalue()


def loads(data: bytes, classes: Classes) -> Any:
    """The inverse of ``dumps``. Raises UnpicklingError for a class that is not in ``classes``.

    Unpickling runs code, so the caller must have verified the data.
    """
    return _Unpickler(data, classes).load()


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, classes: Classes) -> None:
        super().__init__(buffer)
        self._digests = {id(kind): digest for digest, kind in classes.items()}

    def persistent_id(self, value: object) -> str | None:
        return self._digests.get(id(value))


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, classes: Classes) -> None:
        super().__init__(io.BytesIO(data))
        self._classes = classes

    def persistent_load(self, digest: str) -> type:
        if digest not in self._classes:
            raise pickle.UnpicklingError("it needs a class that the program has not defined")
        return self._classes[digest]


def _made(unit: Unit) -> type:
    name = unit["class"].rpartition(".")[2]
    found: type = program_units.run(unit, name)[name]
    return found


def _unit(kind: type) -> Unit:
    def read(source: Source) -> None:
        _refuse_what_is_elsewhere(kind)
        source.refer(kind.__name__, kind)

    subject = _subject(kind)
    unit = program_units.collect_unit(subject, CODE, Source(subject, CODE, kind.__module__, anew=True), read)
    return {"class": kind.__qualname__, **unit}


def _refuse_what_is_elsewhere(kind: type) -> None:
    if sys.flags.optimize:
        _refuse(kind, "Python runs with -O")
    if any(entry.torch_dispatch_rules.find(kind) for entry in list(simple_registry.singleton._data.values())):
        _refuse(kind, "operators have rules for it")
    if any(kind in operator.python_key_table for operator in list(torch._ops._higher_order_ops.values())):
        _refuse(kind, "higher-order operators have rules for it")
    if kind in pytree.SUPPORTED_NODES or kind in pytree.CONSTANT_NODES:
        _refuse(kind, "pytree flattens it")


def _found(name: str, digest: str) -> type:
    alike = [kind for kind in set(_subclasses(torch.Tensor)) if is_nowhere(kind) and kind.__qualname__ == name]
    try:
        found = [kind for kind in alike if source_units.digest(_unit(kind)) == digest]
    except Bypass as refused:
        raise ValueError(str(refused)) from refused
    if len(found) != 1:
        raise ValueError(f"the program has {len(found) or 'no'} tensor subclasses {name} that equal the graph's")
    return found[0]


def _subclasses(kind: type) -> Iterator[type]:
    inner: type
    for inner in type.__subclasses__(kind):
        yield inner
        yield from _subclasses(inner)


def _subject(kind: type) -> str:
    return f"the tensor subclass {kind.__qualname__}"


def _refuse(kind: type, why: str) -> NoReturn:
    refuse(_subject(kind), why, CODE)
