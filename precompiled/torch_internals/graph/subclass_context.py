"""Encodes the context of a tensor subclass (the second result of ``__tensor_flatten__``) as plain data, and decodes it.

The context may consist of lists, tuples, dictionaries and constants. The context may also contain members of enums, and
dataclass instances that have no attributes besides the fields (torchao's quantization settings, for example). Enums and
dataclasses must be importable. They are encoded as their names and the digests of their sources.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import torch

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import graph_codec
from precompiled.torch_internals.user_code import user_modules


def encode(value: Any, modules: dict[str, str]) -> object:
    """Plain data for ``value``. Adds the modules that a worker must import, with their digests, to ``modules``.

    Raises Bypass if a part of the context has an unsupported form.
    """
    kind = type(value)
    if kind in (list, tuple):
        return {kind.__name__: [encode(item, modules) for item in value]}
    if kind is dict:
        return {"dict": [[encode(key, modules), encode(item, modules)] for key, item in value.items()]}
    if isinstance(value, enum.Enum):
        if kind.__members__.get(value.name) is not value:  # a combination of several flags has no name of its own
            _refuse(value)
        return {"member": [_class(kind, modules), value.name]}
    if dataclasses.is_dataclass(value):
        state = getattr(value, "__dict__", {})
        names = [field.name for field in dataclasses.fields(value)]
        if set(state) != set(names):
            _refuse(value)
        return {"object": [_class(kind, modules), [[name, encode(state[name], modules)] for name in names]]}
    # For a subclass of list, tuple or dict, decoding would return the base class.
    if isinstance(value, (list, tuple, dict)) and kind is not torch.Size:
        _refuse(value)
    return {"constant": graph_codec.encode_constant(value)}


def decode(encoded: Any) -> Any:
    """Raises ValueError, ImportError or AttributeError if a class has changed."""
    ((kind, content),) = encoded.items()
    if kind == "constant":
        return graph_codec.decode_constant(content)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    if kind == "member":
        return user_modules.find(content[0])[content[1]]
    if kind == "object":
        made = object.__new__(user_modules.find(content[0]))
        # Set the fields directly: __init__ could compute different values.
        vars(made).update({name: decode(item) for name, item in content[1]})
        return made
    items = [decode(item) for item in content]
    return tuple(items) if kind == "tuple" else items


def _class(kind: type, modules: dict[str, str]) -> user_modules.Name:
    return user_modules.name_with_module(kind, modules, code="unsupported-input")


def _refuse(value: object) -> None:
    raise Bypass(f"the context of a tensor subclass has a {type(value).__name__}", code="unsupported-input")
