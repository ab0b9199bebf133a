"""Encodes settings of Inductor and functorch that are code (passes, solvers, policies), and decodes them in a worker.

- A function or class is named by its module and the digest of the module's sources (user_modules.py), and the worker
  imports it. For code that cannot be imported, the source is sent instead (program_units.py), and the worker runs this
  source at each compile.
- A module is encoded as its name and the digest of its sources.
- An object is encoded as its class and its attributes, and a ``functools.partial`` as its function and arguments. The
  attributes and arguments must be plain values or such code.

Because the digest is in the key, a pass needs no ``uuid()``. If a pass has a ``uuid()``, the worker's pass must return
the same value. Inductor's caches are on in a worker, and accept only passes with a ``uuid()``. So ``with_uuid`` adds
one to a function.

Private names: torch._inductor.custom_graph_pass.{CustomPassBase (2.13, 2.15), CustomGraphPass, CustomSchedulerPass
(2.13, 2.15)}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from torch._inductor import custom_graph_pass

from precompiled.core.errors import Bypass
from precompiled.torch_internals.user_code import program_source, program_units, user_modules

# The base class of this project's own passes. Inductor's caches require it.
GraphPass = custom_graph_pass.CustomGraphPass
# Settings that Inductor calls with a graph, and settings that it calls with a scheduler's nodes.
_GRAPH_PASSES = (
    "post_grad_custom_pre_pass",
    "post_grad_custom_post_pass",
    "joint_custom_pre_pass",
    "joint_custom_post_pass",
    "pre_grad_custom_pass",
)
_SCHEDULER_PASSES = ("_pre_fusion_custom_pass", "_post_fusion_custom_pass")
# save_config_portable omits these settings, although they affect the compile.
NAMES = (*_GRAPH_PASSES, *_SCHEDULER_PASSES, "cudagraph_policy")

# Maps a setting to the base class that Inductor's caches require.
_BASES = {
    **dict.fromkeys(_GRAPH_PASSES, GraphPass),
    **dict.fromkeys(_SCHEDULER_PASSES, getattr(custom_graph_pass, "CustomSchedulerPass", None)),
}
_KINDS = ("function", "partial", "object", "module")
_CODE = "custom-pass"


def encode(value: object, plain: Callable[[Any], Any]) -> dict[str, object] | None:
    """JSON for a function, module or callable object; None for other values.

    ``plain`` encodes the values that the object contains. Raises Bypass if the code cannot be sent.
    """
    if isinstance(value, (FunctionType, BuiltinFunctionType, type)):
        return {"function": _name(value)}
    if isinstance(value, ModuleType):
        return {"module": user_modules.name_of_module(value, code=_CODE)}
    if isinstance(value, functools.partial):
        return {"partial": [plain(value.func), plain(value.args), plain(value.keywords)]}
    if callable(value):
        kind = type(value)
        if getattr(kind, "__slots__", ()) or not hasattr(value, "__dict__"):
            raise Bypass(f"a {kind.__qualname__} has state that cannot be read", code="custom-pass")
        uuid = value.uuid() if hasattr(value, "uuid") else None
        return {"object": [_name(kind), plain(dict(vars(value))), repr(uuid)]}
    return None


def _name(thing: Any) -> list[Any]:
    """The result of ``user_modules.name_of``, or ["", name, unit] for a function or class that cannot be imported."""
    if not program_source.is_nowhere(thing):
        return user_modules.name_of(thing, code=_CODE)
    subject = f"the setting {thing.__qualname__}"
    source = program_source.Source(subject, _CODE, thing.__module__, anew=True)
    unit = program_units.collect_unit(subject, _CODE, source, lambda source: source.refer(thing.__name__, thing))
    return ["", thing.__name__, unit]


def _find(name: list[Any]) -> Any:
    module, short, unit = name
    return user_modules.find(name) if module else program_units.run(unit, short)[short]


def is_encoded(plain: Mapping[str, object]) -> bool:
    return next(iter(plain)) in _KINDS


def decode(encoded: dict[str, Any], value: Callable[[Any], Any]) -> Any:
    """The inverse of ``encode``. Raises ValueError if sources or the ``uuid()`` have changed. Also raises an import's
    exception.
    """
    ((kind, content),) = encoded.items()
    if kind == "function":
        return _find(content)
    if kind == "module":
        return user_modules.find_module(content)
    if kind == "partial":
        function, arguments, named = map(value, content)
        return functools.partial(function, *arguments, **named)
    name, state, uuid = content
    found = _find(name)
    made = object.__new__(found)
    vars(made).update(value(state))
    here = repr(made.uuid() if hasattr(made, "uuid") else None)
    if here != uuid:
        raise ValueError(f"the uuid() of {name[1]} is {here} here, and {uuid} in the program")
    return made


def with_uuid(name: str, value: object, encoded: object) -> object:
    """The value of a setting in the form that Inductor's caches accept. ``encoded`` is its JSON."""
    if isinstance(value, (list, tuple)):
        return type(value)(with_uuid(name, item, encoded) for item in value)
    base = _BASES.get(name)
    if base is None or not callable(value) or hasattr(value, "uuid"):
        return value
    methods = {"__call__": lambda _self, *arguments: value(*arguments), "uuid": lambda _self: repr(encoded)}
    return type("Named", (base,), methods)()


def modules(encoded: object) -> Iterator[tuple[str, str]]:
    """Yield the modules and operators that a worker needs for an encoded setting, as pairs of name and digest."""
    if isinstance(encoded, list):
        for item in encoded:
            yield from modules(item)
    elif isinstance(encoded, dict):
        ((kind, content),) = encoded.items()
        if kind == "dict":
            yield from modules(list(content.values()))
        elif kind in ("function", "object"):
            module, _qualname, digest = content if kind == "function" else content[0]
            if not module:
                yield from program_units.worker_needs(digest).items()
            elif digest:
                yield module, digest
            if kind == "object":
                yield from modules(content[1])
        elif kind == "module":
            module, digest = content
            if digest:
                yield module, digest
        else:
            yield from modules(content)
