"""Reads from torch's dispatcher where an operator was defined, and where each of its kernels was registered.

This file parses the text that dumpState returns (aten/src/ATen/core/dispatch/OperatorEntry.cpp). For a backward that
``torch.library.register_autograd`` registered, torch._library.autograd.make_autograd_impl creates a class. This file
finds the backward in the closures of this class.

Private names: torch._C._dispatch_dump, torch._library.autograd.Info, torch._ops.OpOverload.{_namespace, _opname,
_overloadname}.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType

import torch
from torch._library import autograd

_KERNEL = re.compile(r"^(\w+)(?:\[alias\])?(?: \(inactive\))?: (.*?) :: .* \[ .*\]$")
_DEFINITION = re.compile(r"^(debug): (.*)$")
_PLACE = re.compile(r"registered at (.+):\d+")

DEFINITION = "debug"


@dataclass(frozen=True)
class DispatcherEntry:
    """A registered kernel or definition.

    ``key`` is the dispatch key, or DEFINITION. ``file`` is the source file of the registration, or "" if torch has no
    name for it.
    """

    key: str
    file: str


def of(operator: str) -> list[DispatcherEntry]:
    """All registrations of an operator (lib::name.overload), including overridden ones."""
    found = []
    for line in torch._C._dispatch_dump(operator).splitlines():
        if (match := _KERNEL.match(line) or _DEFINITION.match(line)) is not None:
            place = _PLACE.fullmatch(match[2])
            found.append(DispatcherEntry(match[1], place[1] if place else ""))
    return found


def backwards(op: torch._ops.OpOverload) -> Iterator[Callable[..., object]]:
    """All functions passed to ``torch.library.register_autograd`` for an operator, including replaced ones."""
    name = f"GeneratedBackwardFor_{op._namespace}_{op._opname}_{op._overloadname}"
    for made in torch.autograd.Function.__subclasses__():
        if made.__name__ == name and made.__module__ == autograd.__name__:
            for function in (made.forward, made.backward):
                for held in _held(function):
                    yield from (f for f in (held._backward_fn, held._setup_context_fn) if f is not None)


def _held(function: object, depth: int = 0) -> Iterator[autograd.Info]:
    """The Infos in a function's closure, and in the closures of the functions that it wraps."""
    for cell in getattr(function, "__closure__", None) or ():
        content = cell.cell_contents
        if isinstance(content, autograd.Info):
            yield content
        elif isinstance(content, FunctionType) and depth < 2:
            yield from _held(content, depth + 1)
