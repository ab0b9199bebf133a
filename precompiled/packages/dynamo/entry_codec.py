"""Encodes bytecode and guards (plain data, code objects and Dynamo's sources) as bytes, and decodes the bytes.

This file refuses objects of the user's program, except the ``_make`` of a namedtuple that can be imported by its name.
Dynamo's bytecode, sources and guard expressions contain names that are valid only in one process
(``__compiled_fn_3_5f1c...``, ``__builtins_dict___7``). ``encode`` replaces them by placeholders, and ``decode``
replaces the placeholders by names of the later process. A module's globals are written as the module's name.

Private names: torch._guards.{Source, GuardEnvExpr, TracingContext, tracing}, torch._dynamo.source.*,
torch._dynamo.bytecode_transformation.get_code_keys, torch._dynamo.guards.{ShapeCodeParts, _ShapeGuardsHelper,
_CppShapeGuardsHelper}, torch._C._dynamo.guards. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import dataclasses
import enum
import io
import pickle
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._dynamo.guards
import torch._dynamo.source
import torch._guards
from torch._dynamo.bytecode_transformation import get_code_keys

from precompiled.core.looks import is_a
from precompiled.core.names import object_at
from precompiled.packages.describe.codes import module_of_globals
from precompiled.packages.describe.errors import Mismatch, NotPortable

_MAKE = "_make"
_PLAIN = (type(None), bool, int, float, complex, str, bytes, bytearray, type(...), slice, range)
_CONTAINERS = (tuple, list, dict, set, frozenset)
_TORCH_VALUES = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)


def encode(value: object, names: Mapping[str, str]) -> bytes:
    """Encode a value. ``names`` maps this process's names to placeholders. Raises NotPortable for user objects."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, names).dump(value)
    except (pickle.PicklingError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise NotPortable(f"it does not pickle: {error}") from error
    return buffer.getvalue()


def decode(data: bytes, name: Callable[[str], str]) -> Any:
    """Decode verified bytes of ``encode``. Decoding can run code. ``name`` maps a placeholder to a name.

    Raises Mismatch if the bytes name a module or a namedtuple that this process lacks.
    """
    unpickler = _Unpickler(io.BytesIO(data))
    unpickler.name = name
    # The context discards guards that some sources (ClosureSource, for example) install at their creation.
    with torch._guards.tracing(torch._guards.TracingContext(None)):
        return unpickler.load()


class _Pickler(pickle.Pickler):
    def __init__(self, buffer: io.BytesIO, names: Mapping[str, str]) -> None:
        super().__init__(buffer, protocol=5)
        self._names = names
        whole = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        self._occurs = re.compile(rf"(?<![A-Za-z0-9_])(?:{whole})(?![A-Za-z0-9_])") if names else None

    def persistent_id(self, value: object) -> object:
        if type(value) is str and self._occurs is not None and len(value) > 4 and self._occurs.search(value):
            pieces: list[tuple[bool, str]] = []
            at = 0
            for match in self._occurs.finditer(value):
                pieces += [(False, value[at : match.start()]), (True, self._names[match.group()])]
                at = match.end()
            return [*pieces, (False, value[at:])]
        if type(value) is types.MethodType and is_a(value.__self__, type) and value.__name__ == _MAKE:
            kind: Any = value.__self__  # a namedtuple, whose _make builds the frame's result
            if object_at(kind.__module__, kind.__qualname__) is not kind:
                raise NotPortable(f"{kind.__module__}.{kind.__qualname__} cannot be imported by its name")
            return kind.__module__, kind.__qualname__
        return module_of_globals(value)

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, types.CodeType):
            return _code, ({key: getattr(value, key) for key in get_code_keys()},)
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
            if (value.__module__ or "").split(".")[0] in ("torch", "builtins", "collections", "copyreg", "precompiled"):
                return NotImplemented  # pickled by name, as pickle does by default
            raise NotPortable(f"{value.__module__}.{value.__qualname__} is part of a guard")
        if kind in _PLAIN or kind in _CONTAINERS or kind in _TORCH_VALUES:
            return NotImplemented
        if isinstance(value, torch._guards.Source) and not all(field.init for field in dataclasses.fields(value)):
            # In torch 2.11, a source's __reduce__ includes fields that its constructor does not take.
            return kind, tuple(getattr(value, field.name) for field in dataclasses.fields(value) if field.init)
        if isinstance(value, (torch._guards.Source, torch._guards.GuardEnvExpr)):
            return NotImplemented
        if kind.__module__.startswith(f"{__package__}."):
            return NotImplemented
        if isinstance(value, enum.Enum) and kind.__module__.split(".")[0] == "torch":
            return NotImplemented
        if kind.__module__ in ("torch._dynamo.guards", "torch._guards", "torch.fx.experimental.symbolic_shapes"):
            return NotImplemented
        if kind.__module__.startswith("sympy."):
            raise NotPortable("a symbolic size is left in a guard")
        raise NotPortable(f"a {kind.__module__}.{kind.__qualname__} is part of the bytecode or of a guard")


class _Unpickler(pickle.Unpickler):
    name: Callable[[str], str]

    def persistent_load(self, pieces: Any) -> object:
        if isinstance(pieces, str):
            if pieces not in sys.modules:  # the program imports the module before it calls the function
                raise Mismatch(f"the module {pieces} is not imported here")
            return vars(sys.modules[pieces])
        if isinstance(pieces, tuple):
            kind = object_at(*pieces)
            if not is_a(kind, type) or not issubclass(kind, tuple) or not hasattr(kind, _MAKE):
                raise Mismatch(f"{'.'.join(pieces)} is not a namedtuple here")
            return getattr(kind, _MAKE)
        return "".join(self.name(text) if is_name else text for is_name, text in pieces)


def _code(fields: dict[str, Any]) -> types.CodeType:
    return types.CodeType(*(fields[key] for key in get_code_keys()))
