"""Whether tensors' operators are torch's own: Dynamo writes ``a @ b`` as ``operator.matmul``, patched or not.

AOTAutograd runs what it finds there, ``torch.Tensor.__matmul__`` of its process. A worker has torch's own. Methods with
other names need no such look: Dynamo traces what a program has put in their place.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0: what torch.Tensor does not define itself, it has from a class of C
that nobody can change. The names below are what torch's own functions call themselves (torch/_tensor.py).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import cache
from types import FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch

from precompiled.core.errors import Bypass
from precompiled.core.files import is_really_torchs

_MODULES = ("_operator", "operator", "builtins")
# What Python calls for these; < has the other side's > for its reflected form.
_OTHERS = {
    "lt": ("gt",), "gt": ("lt",), "le": ("ge",), "ge": ("le",), "not": ("bool",), "truth": ("bool",),
    "inv": ("invert",), "concat": ("add", "radd"), "iconcat": ("iadd", "add", "radd"),
}  # fmt: skip
_NAMES = {
    "__abs__": "abs", "__neg__": "neg", "__pos__": "positive", "__pow__": "pow", "__ipow__": "pow_",
    "__itruediv__": "__idiv__", "__rtruediv__": "__rdiv__",
}  # fmt: skip


def refuse_patched(target: Any) -> None:
    """Raises Bypass where a function of Python's operator module means a method of torch.Tensor that is not torch's."""
    if getattr(target, "__module__", None) in _MODULES:
        for name in _methods(target.__name__):
            found = vars(torch.Tensor).get(name)
            if found is not None and not _is_own(name, found):
                raise Bypass(f"torch.Tensor.{name} is patched, and the graph uses it", code="user-function")


def refuse_any_patched() -> None:
    """The same for all of the module's functions: where there is no graph to tell which of them it uses."""
    for function in operator.__all__:
        refuse_patched(getattr(operator, function))


@cache
def _methods(function: str) -> tuple[str, ...]:
    """The methods of a tensor that Python may call for a function of the operator module (``and_``, ``iadd``)."""
    return tuple(f"__{name}__" for name in dict.fromkeys(_stems(function.strip("_"))))


def _stems(name: str) -> Iterator[str]:
    yield from (name, f"r{name}", f"i{name}", *_OTHERS.get(name, ()))
    if name.startswith("i") and hasattr(operator, f"__{name[1:]}__"):  # in place, as far as there is such a method
        yield from (name[1:], f"r{name[1:]}")


def _is_own(name: str, found: Any) -> bool:
    if getattr(found, "__name__", None) not in (name, _NAMES.get(name)):
        return False
    if isinstance(found, FunctionType):
        return _is_torchs(found.__code__.co_filename)
    return isinstance(found, (MethodDescriptorType, WrapperDescriptorType))


_is_torchs = cache(is_really_torchs)
