"""Describes custom operators by their schema alone, if they write into arguments and return nothing.

Torch itself creates the fake kernel of such an operator, and the fake kernel does nothing
(can_generate_trivial_fake_impl in torch/_library/utils.py). If the operator has only device kernels and no rules in
Python, its schema is all that a compile needs. Compiled code calls the kernels by name, in the user's process. So a
worker loads neither the operator's module nor its library: it defines an operator with this schema, and with kernels
that only raise an error. The data that is sent, and is in the key, is a *unit*::

    {"op": "lib::name", "schema": "name(Tensor! out, Tensor x) -> ()", "tags": [], "aliases": "FROM_SCHEMA",
     "registered": ["CPU"]}

Private names: torch._library.simple_registry.singleton.find, torch._ops.OpOverload._schema,
torch._C.{_dispatch_dump, _register_opaque_type, parse_schema}, torch.fx.node._side_effectful_functions.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch._library import simple_registry
from torch.fx import node as fx_node

from precompiled.torch_internals.user_code import dispatcher_registrations, program_ops, source_units

_DEVICES = ("CPU", "CUDA")
_ALIASES = re.compile(r"^alias analysis kind: (\w+)$", re.MULTILINE)
# Torch prints ``Tensor!`` in this form, which torch itself cannot parse.
_WRITTEN = re.compile(r"\(\$\d+! -> \)")
# Torch cannot parse its own text for the class of an opaque object (opaque_inputs.py), so a name replaces the text.
_OPAQUE, _ANY_CLASS = re.compile(r"\bPyObject\b"), "precompiled.AnyClass"
_DEFINED: dict[str, torch.library.Library] = {}  # in a worker: maps an operator to the Library that defines it


def describe(op: torch._ops.OpOverload) -> str | None:
    """JSON of the operator's unit (defined above); None if a compile depends on more than the operator's schema.

    The caller has already checked that Python has registered no function for the operator.
    """
    schema = op._schema
    if schema.returns or not schema.is_mutable or schema.overload_name:
        return None
    registered = dispatcher_registrations.of(schema.name)
    keys = sorted({place.key for place in registered} - {dispatcher_registrations.DEFINITION})
    entry = simple_registry.singleton.find(schema.name)
    if (
        set(keys) - set(_DEVICES)
        or entry.fake_impl.kernel is not None
        or entry.effect.effect is not None
        or entry.torch_dispatch_rules._data
        or (getattr(entry, "symm_mem_args", None) is not None and entry.symm_mem_args.is_registered())
        or op in fx_node._side_effectful_functions
    ):
        return None
    text = _OPAQUE.sub(_ANY_CLASS, _WRITTEN.sub("!", str(schema)))
    aliases = _ALIASES.search(torch._C._dispatch_dump(schema.name))
    if aliases is None or not _reads_back(text, str(schema)):
        return None
    unit = {
        "op": schema.name,
        "schema": text.partition("::")[2],
        "tags": sorted(tag.name for tag in op.tags),
        "aliases": aliases[1],
        "registered": keys,
    }
    return json.dumps([unit], sort_keys=True)


def is_unit(unit: Mapping[str, object]) -> bool:
    return "aliases" in unit


def define(unit: dict[str, Any]) -> None:
    """Define an operator from its unit in a worker. Raises ValueError if a different operator of that name exists."""
    name = unit["op"]
    namespace, _, operator = name.partition("::")
    if not hasattr(getattr(torch.ops, namespace), operator):
        _register_any_class()
        library = _DEFINED[name] = torch.library.Library(namespace, "FRAGMENT")
        aliases = "" if unit["aliases"] == "FROM_SCHEMA" else unit["aliases"]
        library.define(unit["schema"], aliases, tags=[getattr(torch.Tag, tag) for tag in unit["tags"]])
        for key in unit["registered"]:
            library.impl(operator, program_ops.no_kernel, key)
    compare(name, source_units.digest(unit))


def compare(name: str, expected: str) -> None:
    """Raises ValueError if the operator of this name is missing or its digest differs."""
    namespace, _, operator = name.partition("::")
    found = getattr(getattr(torch.ops, namespace), operator, None)
    described = describe(found.default) if found is not None and "default" in found.overloads() else None
    if described is None or source_units.digest(json.loads(described)[0]) != expected:
        raise ValueError(f"the custom op {name} differs from that of the process that captured the graph")


@cache
def _register_any_class() -> None:
    torch._C._register_opaque_type(_ANY_CLASS)


@cache
def _reads_back(text: str, shown: str) -> bool:
    _register_any_class()
    try:
        return str(torch._C.parse_schema(text)) == shown
    except RuntimeError:
        return False
