"""Support: small graphs as Dynamo passes them to a backend, and their captured programs, without a compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from precompiled.graph import capture, key


@dataclass(frozen=True)
class Captured:
    """One graph: Dynamo's module, its inputs, and the captured program with its key."""

    module: torch.fx.GraphModule
    inputs: list[Any]
    program: capture.SerializedGraph

    @property
    def key(self) -> str:
        return key.key(self.program.sections)


def captures(
    function: Callable[..., Any], *inputs: Any, options: Mapping[str, Any] | None = None, **compile_arguments: Any
) -> list[Captured]:
    """Run ``function`` once under torch.compile and capture each of its graphs.

    Raises the exception of a failed capture.
    """
    found: list[Captured] = []
    raised: list[Exception] = []

    def backend(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        # The backend itself calls ``capture``, because Dynamo's fake tensors and torch's modes must be those of the
        # backend's call.
        try:
            found.append(Captured(module, example_inputs, capture.capture(module, options or {})))
        except Exception as error:  # Dynamo would wrap an exception that leaves a backend
            raised.append(error)
        return module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, **compile_arguments)(*inputs)
    if raised:
        raise raised[0]
    return found


def captured(function: Callable[..., Any], *inputs: Any, **arguments: Any) -> Captured:
    """Returns the only graph of ``function``."""
    (only,) = captures(function, *inputs, **arguments)
    return only


def key_of(function: Callable[..., Any], *inputs: Any, **arguments: Any) -> str:
    return captured(function, *inputs, **arguments).key
