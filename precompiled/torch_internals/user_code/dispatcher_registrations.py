"""What torch's dispatcher says of an operator: where it was defined, and where each of its kernels was registered.

Private names: torch._C._dispatch_dump, torch._library.autograd.Info, torch._ops.OpOverload.{_namespace, _opname,
_overloadname}.
Checked on 2.11.0, 2.13.0, 2.15.0. The text is made in aten/src/ATen/core/dispatch/OperatorEntry.cpp (dumpState); a
backward of ``torch.library.register_autograd`` lies in the closures of the class that torch._library.autograd's
make_autograd_impl makes for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch._library import autograd

_KERNEL = re.compile(r"^(\w+)(?:\[alias\])?(?: \(inactive\))?: (.*?) :: .* \[ .*\]$")
_DEFINITION = re.compile(r"^(debug): (.*)$")
_PLACE = re.compile(r"registered at (.+):\d+")

DEFINITION = "debug"


@dataclass(frozen=True)
class Registration:
    """``key``: the dispatch key, or DEFINITION. ``file``: the source that registered it; "" where torch has no name."""

    key: str
    file: str


def of(operator: str) -> list[Registration]:
    """All registrations of an operator (lib::name.overload), also those that others have overridden."""
    found = []
    for line in torch._C._dispatch_dump(operator).splitlines():
        if (match := _KERNEL.match(line) or _DEFINITION.match(line)) is not None:
            place = _PLACE.fullmatch(match[2])
            found.append(Registration(match[1], place[1] if place else ""))
    return found


def backwards(op: torch._ops.OpOverload) -> Iterator[Callable[..., Any]]:
    """The functions that ``torch.library.register_autograd`` was given for an operator, at any time."""
    name = f"GeneratedBackwardFor_{op._namespace}_{op._opname}_{op._overloadname}"
    for made in torch.autograd.Function.__subclasses__():
        if made.__name__ == name and made.__module__ == autograd.__name__:
            for function in (made.forward, made.backward):
                for held in _held(function):
                    yield from (f for f in (held._backward_fn, held._setup_context_fn) if f is not None)


def _held(function: Any, depth: int = 0) -> Iterator[autograd.Info]:
    """What a closure holds, also that of a function which wraps it (for lists of tensors)."""
    for cell in getattr(function, "__closure__", None) or ():
        content = cell.cell_contents
        if isinstance(content, autograd.Info):
            yield content
        elif isinstance(content, FunctionType) and depth < 2:
            yield from _held(content, depth + 1)
