"""What a module's functions compute with, and its sources do not say: values that a program has set, and registrations.

Numbers and texts at the top level, in its classes, and in the objects that it keeps there (a configuration, an
``argparse.Namespace``); which functions are registered for its operators, with what their closures hold; variables of
the environment that the sources name. What is no data (modules, locks, tensors) is left out.

Private names: torch._library.custom_ops.OPDEFS, CustomOpDef.{_init_fn, _schema, _abstract_fn, _setup_context_fn,
_backward_fn, _vmap_fn, _backend_fns, _torch_dispatch_fns, _autocast_dtype (2.11: _autocast_cpu_dtype,
_autocast_cuda_dtype)}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import argparse
import ast
import enum
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._library import custom_ops

# Types of values that say all by their repr.
_PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device})
_OBJECTS = (types.SimpleNamespace, argparse.Namespace)
_AUTOCAST = ("_autocast_dtype", "_autocast_cpu_dtype", "_autocast_cuda_dtype")
_LEFT_OUT = object()
MAX_DEPTH = 4
MAX_LOOKED_AT = 10_000  # values of one module, but for those in lists and dictionaries of nothing but plain ones


def values(module: str, path: Path) -> str:
    """A module's values, as they are now: a program may have set them to others than its source says.

    A worker has those of the source. Where they differ it refuses the graph, which is then compiled in process.
    """
    found = sys.modules.get(module)
    if found is None:
        return ""
    look = _Look(module)
    named = {name: value for name, value in vars(found).items() if not name.startswith("__")}
    variables = [(name, os.environ.get(name)) for name in sorted(_variables(path, path.stat().st_mtime_ns))]
    return repr((look.items(named, 0), [look.registered(*item) for item in _operators(module)], variables))


class _Look:
    """One look at the values of a module, of a bounded length: the same values are left out in each process."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._left = MAX_LOOKED_AT

    def shown(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self._left -= 1
        if _is_plain(value):
            return repr(value)
        if isinstance(value, enum.Enum):
            return str(value)
        if depth > MAX_DEPTH or self._left < 0:
            return _LEFT_OUT
        if isinstance(value, (tuple, list)):
            return [kind.__qualname__, *self._some(value, depth)]
        if isinstance(value, (set, frozenset)):
            return [kind.__qualname__, *sorted(map(repr, self._some(value, depth)))]
        if isinstance(value, dict):
            return [kind.__qualname__, *self.items(value, depth)]
        if isinstance(value, type):
            own = value.__module__ == self._module
            return [kind.__qualname__, *self.items(vars(value), depth)] if own else _LEFT_OUT
        if kind in _OBJECTS or _is_of_the_users(kind):
            return [kind.__qualname__, *self.items(getattr(value, "__dict__", {}), depth)]
        return _LEFT_OUT

    def items(self, found: Mapping[Any, Any], depth: int) -> list[Any]:
        pairs = [
            (str(key), self.shown(value, depth + 1))
            for key, value in sorted(found.items(), key=lambda item: str(item[0]))
            if _is_plain(key) and not str(key).startswith("__")
        ]
        return [pair for pair in pairs if pair[1] is not _LEFT_OUT]

    def _some(self, found: Iterable[Any], depth: int) -> list[Any]:
        return [item for item in (self.shown(value, depth + 1) for value in found) if item is not _LEFT_OUT]

    def registered(self, name: str, definition: Any) -> Any:
        """What stands for a custom operator: it may be chosen where the program begins."""
        single = ("_init_fn", "_abstract_fn", "_setup_context_fn", "_backward_fn", "_vmap_fn")
        functions = [getattr(definition, attribute, None) for attribute in single]
        for table in (getattr(definition, attribute, {}) for attribute in ("_backend_fns", "_torch_dispatch_fns")):
            functions += [table[key] for key in sorted(table, key=str)]
        types_ = [getattr(definition, attribute, None) for attribute in _AUTOCAST]
        return name, definition._schema, [self._function(function, 0) for function in functions], repr(types_)

    def _function(self, function: Callable[..., Any] | None, depth: int) -> Any:
        """Which function of the sources it is, and what its closure holds."""
        code = getattr(function, "__code__", None)
        if code is None or depth > MAX_DEPTH:
            return type(function).__qualname__
        held = []
        for cell in getattr(function, "__closure__", None) or ():
            with suppress(ValueError):  # not set yet
                content = cell.cell_contents
                held.append(
                    self._function(content, depth + 1) if callable(content) else self.shown(content, depth + 1)
                )
        held = [item for item in held if item is not _LEFT_OUT]
        return [code.co_name, code.co_firstlineno, self.items(_defaults(function), depth), held]


def _defaults(function: Any) -> dict[str, Any]:
    given = enumerate(getattr(function, "__defaults__", None) or ())
    return {**{str(number): value for number, value in given}, **(getattr(function, "__kwdefaults__", None) or {})}


def _operators(module: str) -> Iterator[tuple[str, Any]]:
    for name, definition in sorted(custom_ops.OPDEFS.items()):
        if getattr(definition._init_fn, "__module__", None) == module:
            yield name, definition


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.keys())) and all(map(_is_plain, value.values()))
    return type(value) in _PLAIN


def _is_of_the_users(kind: type) -> bool:
    root = kind.__module__.split(".")[0]
    return root not in sys.stdlib_module_names and root not in ("torch", "triton", "numpy")


@cache
def _variables(path: Path, saved: int) -> frozenset[str]:
    """What a source asks the environment for by name: ``os.environ["A"]``, ``os.environ.get("A")``, ``getenv("A")``."""
    del saved  # for the cache: another source by then
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    found = set()
    for node in ast.walk(tree):
        asked: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and _ends_with(node.value, "environ"):
            asked = [node.slice]
        elif isinstance(node, ast.Compare) and any(_ends_with(item, "environ") for item in node.comparators):
            asked = [node.left]
        elif isinstance(node, ast.Call) and node.args:
            function = node.func
            of_environ = isinstance(function, ast.Attribute) and _ends_with(function.value, "environ")
            asked = [node.args[0]] if of_environ or _ends_with(function, "getenv") else []
        found |= {item.value for item in asked if isinstance(item, ast.Constant) and isinstance(item.value, str)}
    return frozenset(found)


def _ends_with(node: ast.expr, name: str) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == name) or (isinstance(node, ast.Name) and node.id == name)
