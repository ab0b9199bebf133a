"""Sends the source of custom operators that the program itself defines, since a worker cannot import ``__main__``.

A compile needs an operator's schema and the functions that run during a trace: the fake kernel, the backward with its
setup, and the rule for vmap. Compiled code calls the operator's kernels by name, in the user's process, so the kernels
that a worker defines only raise an error. The functions and everything that they read (program_source.py) are sent, and
are in the key, as a *unit*::

    {"op": "lib::name", "schema": "(Tensor x) -> Tensor", "mutates": [], "devices": [null], "registered": ["Meta", ...],
     "roles": {"fake": "_precompiled_fake"}, "source": "def _precompiled_fake(x): ...", "flags": 0, "imports": ["math"]}

If anything else about the operator affects a compile (registrations of a library, effects, tags, autocast rules,
lowerings in Inductor), ``describe`` raises Bypass, and the graph is compiled in process.

Private names: torch._library.custom_ops.OPDEFS, torch._library.custom_ops.CustomOpDef.{_init_fn, _schema, _abstract_fn,
_setup_context_fn, _backward_fn, _vmap_fn, _backend_fns, _torch_dispatch_fns, _autocast_dtype (2.13, 2.15),
_autocast_cpu_dtype (2.11), _autocast_cuda_dtype (2.11), _opoverload}, torch._library.simple_registry.singleton.find,
torch._ops.OpOverload.{_schema, py_kernels}, torch._C._dispatch_dump, torch._inductor.lowering.{lowerings, fallbacks,
user_lowerings (2.13, 2.15)}, torch._inductor.decomposition.decompositions. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any, NoReturn

import torch
from torch._library import custom_ops, simple_registry

from precompiled.core import interruptions
from precompiled.core.errors import Bypass
from precompiled.torch_internals.user_code import program_source, source_units
from precompiled.torch_internals.user_code.program_source import OURS, PROGRAMS, Source

_ROLES = {
    "fake": "_abstract_fn",
    "setup_context": "_setup_context_fn",
    "backward": "_backward_fn",
    "vmap": "_vmap_fn",
}
_AUTOCAST = ("_autocast_dtype", "_autocast_cpu_dtype", "_autocast_cuda_dtype")
_OWN_REGISTRATIONS = "/torch/_library/custom_ops.py:"
_DEFINED: dict[str, str] = {}  # in a worker: maps the name of an operator to the digest of its definition


def refuse(name: str, why: str) -> NoReturn:
    """Raise Bypass for an operator that the program defines."""
    program_source.refuse(f"the custom op {name}", why, code="custom-op-in-main")


def describe(definition: custom_ops.CustomOpDef) -> tuple[str, list[str]]:
    """Return the JSON of units, and the modules that the units import.

    The units describe the operator, and the program's operators that it calls. Raises Bypass if a worker could not
    rebuild the same operators.
    """
    found: dict[str, dict[str, object]] = {}
    modules: set[str] = set()
    waiting = [definition]
    while waiting:
        item = waiting.pop()
        name = _name(item)
        if name not in found:
            found[name], source = _unit(item)
            waiting += source.operators
            modules |= source.modules
    return json.dumps([found[name] for name in sorted(found)], sort_keys=True), sorted(modules)


def define(unit: dict[str, Any]) -> None:
    """In a worker, define an operator that ``describe`` encoded. In the user's process, compare the operator with the
    unit.

    Raises ValueError if an operator of the same name differs.
    """
    name = unit["op"]
    own = custom_ops.OPDEFS.get(name)
    if own is None:
        _define(unit)
        _DEFINED[name] = source_units.digest(unit)
    elif source_units.digest(unit) != (_DEFINED.get(name) or source_units.digest(_described(own))):
        raise ValueError(f"the custom op {name} differs from that of the process that captured the graph")


def compare(name: str, digest: str) -> None:
    """In the user's process, check the operator of this name. Raises ValueError if its digest differs."""
    if source_units.digest(_described(custom_ops.OPDEFS[name])) != digest:
        raise ValueError(f"the custom op {name} differs from that of the process that captured the graph")


def _described(own: custom_ops.CustomOpDef) -> dict[str, object]:
    try:
        return _unit(own)[0]
    except Bypass as refused:
        raise ValueError(str(refused)) from refused


def _define(unit: dict[str, Any]) -> None:
    space = source_units.run(unit, unit["op"])
    devices = unit["devices"]
    op = torch.library.custom_op(
        unit["op"],
        no_kernel,
        mutates_args=unit["mutates"],
        schema=unit["schema"],
        device_types=None if None in devices else devices,
    )
    for device in devices if None in devices else ():
        if device is not None:
            op.register_kernel(device)(no_kernel)
    functions = {role: space[name] for role, name in unit["roles"].items()}
    if "fake" in functions:
        op.register_fake(functions["fake"])
    if "backward" in functions:
        op.register_autograd(functions["backward"], setup_context=functions.get("setup_context"))
    if "vmap" in functions:
        op.register_vmap(functions["vmap"])


def no_kernel(*arguments: object, **named: object) -> NoReturn:
    raise RuntimeError("a custom op of a program has no kernel in a worker")


def _unit(definition: custom_ops.CustomOpDef) -> tuple[dict[str, object], Source]:
    name, overload = _name(definition), definition._opoverload
    try:
        registered = _registrations(name)
        _refuse_what_is_more(definition, name, registered)
        source, roles = Source(f"the custom op {name}", code="custom-op-in-main"), {}
        for role, attribute in _ROLES.items():
            if (function := getattr(definition, attribute)) is not None:
                roles[role] = f"{OURS}{role}"
                source.refer(roles[role], function)
        text = source.text()
    except Bypass:
        raise
    except Exception as error:  # noqa: BLE001 - reading the user's code can raise anything
        interruptions.pass_on(error)
        refuse(name, f"cannot be described ({type(error).__name__}: {error})")
    mutates = [item.name for item in overload._schema.arguments if item.alias_info and item.alias_info.is_write]
    unit = {
        "op": name,
        "schema": definition._schema,
        "mutates": mutates,
        "devices": sorted(definition._backend_fns, key=str),
        "registered": [line.partition(":")[0] for line in registered],
        "roles": roles,
        "source": text,
        "flags": source.flags,
        "imports": sorted(source.imports),
    }
    return unit, source


def _refuse_what_is_more(definition: custom_ops.CustomOpDef, name: str, registered: list[str]) -> None:
    overload = definition._opoverload
    entry = simple_registry.singleton.find(name)
    if definition._init_fn.__module__ not in PROGRAMS:
        refuse(name, "its rules by another module")
    if overload._schema.overload_name or sys.flags.optimize:
        refuse(name, "is an overload" if overload._schema.overload_name else "Python runs with -O")
    if definition._torch_dispatch_fns or any(getattr(definition, attribute, None) for attribute in _AUTOCAST):
        refuse(name, "has rules for modes or autocast")
    if getattr(getattr(entry, "effect", None), "effect", None) is not None:
        refuse(name, "has effects")
    if set(overload.tags) - _usual_tags():
        refuse(name, f"has tags: {overload.tags}")
    others = [line for line in registered if _OWN_REGISTRATIONS not in line]
    if others or overload.py_kernels:
        refuse(name, f"has kernels of a library's: {', '.join(others) or list(overload.py_kernels)}")
    if (
        overload in _of_inductors("decomposition", "decompositions")
        or (
            overload in _of_inductors("lowering", "lowerings")
            and overload not in _of_inductors("lowering", "fallbacks")
        )
        or overload in _of_inductors("lowering", "user_lowerings")
    ):
        refuse(name, "has a lowering or decomposition for Inductor")


def _registrations(name: str) -> list[str]:
    """One line of text per registration: "Meta: registered at FILE:LINE ..."."""
    lines: list[str] = torch._C._dispatch_dump(name).splitlines()
    return [line for line in lines if ": registered at " in line and not line.startswith("debug:")]


def _of_inductors(module: str, table: str) -> Any:
    """A table of Inductor. Until Inductor's module is imported, the table counts as empty."""
    return getattr(sys.modules.get(f"torch._inductor.{module}"), table, ())


def _name(definition: custom_ops.CustomOpDef) -> str:
    return str(definition._opoverload._schema.name)


@cache
def _usual_tags() -> frozenset[torch.Tag]:
    return frozenset({torch.Tag.pt2_compliant_tag})
