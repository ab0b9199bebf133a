"""Keeps Dynamo's history of sizes and numbers complete if an entry replaces a trace.

A trace notes each size, int and float that it reads (torch/_dynamo/pgo.py). If a later trace reads a different value,
that trace turns the value into a symbol. If a package replaces the first trace, the history is missing. The second
trace then has different graphs, or even different errors, than in a process without packages. So an entry stores the
names of the sizes and numbers that its trace read. A call that uses the entry notes its own values under these names.
The next trace first adds the noted values to Dynamo's history, and then the values that it reads itself.

Until that trace, this file keeps the noted values. It cannot add them to the history earlier, because the history's
keys (file, line, closure) come from the trace. Torch's stored profile (``TORCH_COMPILE_JOB_ID``) is unsuitable,
because it contains the values of all earlier runs, and may make sizes symbolic even in a process's first trace.

Private names: torch._dynamo.pgo.{update_automatic_dynamic, get_code_state, FrameStateSizeEntry.{make_scalar,
make_tensor}, InferStride}, torch._dynamo.symbolic_convert.InstructionTranslatorBase.{f_code, closure},
torch._dynamo.guards._get_closure_vars. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch._dynamo.guards as dynamo_guards
from torch._dynamo import pgo

from precompiled.core import interruptions
from precompiled.core.definitions import codes_within
from precompiled.packages.describe.codes import code_digest
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.describe.object_paths import Places, found_at
from precompiled.torch_internals.patches import Patches


class Met(NamedTuple):
    """A size or number that a trace read, named by its source."""

    code: types.CodeType
    closure: tuple[str, ...]  # digests of the functions that the code's cells hold
    name: str
    # None for a number. A tensor has one item per dimension: the dimension from which its stride is inferred, or None.
    strides: tuple[int | None, ...] | None


class Kept(NamedTuple):
    """A ``Met`` in an entry, as plain data."""

    place: list[Any] | None  # place of the code (describe/object_paths.py); None: in the frame's own code
    digest: str
    number: int  # index among the code objects at that place with this digest
    closure: tuple[str, ...]
    name: str
    strides: tuple[int | None, ...] | None


# Torch identifies code by its file, line, name and closure.
_Code = tuple[str, int, str, tuple[str, ...]]


class _Waiting:
    """Noted values of calls that used an entry. They wait here until Dynamo traces the code or clears its history."""

    def __init__(self) -> None:
        self._entries: dict[tuple[_Code, str], list[object]] = {}
        self._of: object = None

    def _fresh(self) -> dict[tuple[_Code, str], list[object]]:
        if self._of is not (here := pgo.get_code_state()):  # after torch.compiler.reset(), pgo has a new table
            self._of, self._entries = here, {}
        return self._entries

    def add(self, code: _Code, name: str, entry: object) -> None:
        self._fresh().setdefault((code, name), []).append(entry)

    def take(self, code: _Code, name: str) -> list[object]:
        return self._fresh().pop((code, name), [])


_waiting = _Waiting()


def wrap(
    now: Callable[[], list[Met] | None], looking: Callable[[], contextlib.AbstractContextManager[None]]
) -> Callable[[], None]:
    """Note the sizes and numbers that this thread's traces read. The notes go to the list ``now()``, if there is one.

    Returns a function that stops this.

    ``looking`` prevents an error in this file from ending the trace.
    """

    def noting(original: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(original)
        def update_automatic_dynamic(tx: Any, name: str, entry: object, **more: object) -> object:
            with looking():
                closure = _digests(getattr(tx, "closure", None))
                for earlier in _waiting.take(_code(tx.f_code, closure), name):
                    original(tx, name, earlier, **more)
                noted = now()
                if noted is not None:
                    noted.append(Met(tx.f_code, closure, name, _strides(entry)))
            return original(tx, name, entry, **more)

        return update_automatic_dynamic

    patches = Patches()
    patches.replace(pgo, "update_automatic_dynamic", noting)
    return patches.undo


def convert_sizes(met: Iterable[Met], root: types.CodeType, places: Places) -> tuple[Kept, ...]:
    """Convert a trace's reads for an entry. Leaves out reads in code that cannot be found by a name."""
    return tuple(_kept(met, root, places))


def _kept(met: Iterable[Met], root: types.CodeType, places: Places) -> Iterator[Kept]:
    known: dict[int, tuple[list[object] | None, str, int | None]] = {}
    for code, closure, name, strides in met:
        if id(code) not in known:
            known[id(code)] = _placed(code, root, places)
        place, digest, number = known[id(code)]
        if number is not None:
            yield Kept(place, digest, number, closure, name, strides)


def _placed(code: types.CodeType, root: types.CodeType, places: Places) -> tuple[list[object] | None, str, int | None]:
    digest = code_digest(code)
    place = None if code in codes_within(root) else places.place(code)
    alike = _alike(digest, codes_within(root) if place is None else found_at(place))
    return place, digest, alike.index(code) if code in alike else None


def replay(met: Iterable[Kept], root: types.CodeType, local: Mapping[str, object], scope: Mapping[str, object]) -> None:
    """Note, for the next trace, this call's values of the sizes and numbers that the entry's trace read."""
    names = {**dynamo_guards._get_closure_vars(), "L": local, "G": scope}
    for place, digest, number, closure, name, strides in met:
        alike = _alike(digest, codes_within(root) if place is None else found_at(place))
        if number < len(alike) and (entry := _entry(_value(name, names), strides)) is not None:
            _waiting.add(_code(alike[number], closure), name, entry)


def _alike(digest: str, codes: Iterable[types.CodeType]) -> list[types.CodeType]:
    return [code for code in codes if code_digest(code) == digest]


def _code(code: types.CodeType, closure: tuple[str, ...]) -> _Code:
    return code.co_filename, code.co_firstlineno, code.co_name, closure


def _digests(cells: Iterable[types.CellType] | None) -> tuple[str, ...]:
    return tuple(map(_digest, cells or ()))


def _digest(cell: types.CellType) -> str:
    try:
        held = cell.cell_contents
        return code_digest(held.__code__) if isinstance(held, types.FunctionType) else ""
    except (ValueError, NotPortable):  # an empty cell, or a function that Dynamo made
        return ""


def _strides(entry: Any) -> tuple[int | None, ...] | None:
    if not isinstance(entry.size, tuple):
        return None
    return tuple(stride.dim if isinstance(stride, pgo.InferStride) else None for stride in entry.stride)


def _value(name: str, names: dict[str, Any]) -> object:
    try:
        return eval(name, names)  # as Dynamo's guards do
    except Exception as error:  # noqa: BLE001 - the name is not an input of the call
        interruptions.pass_on(error)
        return None


def _entry(value: object, strides: tuple[int | None, ...] | None) -> object:
    """Return the record that a trace would make for a value.

    None if the value's type or number of dimensions differs from the entry's.
    """
    if strides is None:
        return pgo.FrameStateSizeEntry.make_scalar(value) if type(value) in (int, float) else None
    if not isinstance(value, torch.Tensor) or (strides and value.dim() != len(strides)):
        return None
    own = value.stride() if strides else ()  # a sparse tensor has no strides
    shown = tuple(here if of is None else pgo.InferStride(of) for of, here in zip(strides, own, strict=True))
    return pgo.FrameStateSizeEntry.make_tensor(tuple(value.size()), shown)
