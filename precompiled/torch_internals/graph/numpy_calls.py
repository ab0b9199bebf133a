"""Encodes NumPy calls in a graph. Dynamo replaces NumPy calls by torch's equivalents (torch._numpy), in wrappers that
Dynamo creates.

A wrapper's encoded name is the name of the wrapped function, if torch has exactly that function under that name.

Private names: torch._numpy, torch._dynamo.utils.{numpy_to_tensor_wrapper, numpy_to_tensor_wrapper.f,
numpy_method_wrapper, numpy_method_wrapper.method, numpy_operator_wrapper, numpy_operator_wrapper.op}.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import importlib
import operator
from typing import Any

import torch
from torch._dynamo import utils

KIND = "np"
_NAMESPACES = ("torch._numpy", "torch._numpy.linalg", "torch._numpy.fft", "torch._numpy.random")


def encode(target: object) -> list[str] | None:
    """The name of a wrapper. None if ``target`` is not a wrapper, or if torch lacks the function."""
    if isinstance(target, utils.numpy_method_wrapper):
        name = target.method
        return [KIND, "method", name] if hasattr(torch._numpy.ndarray, name) else None
    if isinstance(target, utils.numpy_operator_wrapper):
        name = getattr(target.op, "__name__", "")
        return [KIND, "operator", name] if getattr(operator, name, None) is target.op else None
    if isinstance(target, utils.numpy_to_tensor_wrapper):
        name = getattr(target.f, "__name__", "")
        for space in _NAMESPACES:
            if getattr(importlib.import_module(space), name, None) is target.f:
                return [KIND, space, name]
    return None


def decode(name: list[str]) -> Any:
    """The wrapper that ``encode`` named. Raises ValueError or AttributeError if the name does not resolve."""
    _, of, called = name
    if of == "method":
        return utils.numpy_method_wrapper(called)
    if of == "operator":
        return utils.numpy_operator_wrapper(getattr(operator, called))
    if of not in _NAMESPACES:
        raise ValueError(f"{of} has none of NumPy's functions")
    return utils.numpy_to_tensor_wrapper(getattr(importlib.import_module(of), called))
