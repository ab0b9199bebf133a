"""Floats that Dynamo passes as tensors and has fixed while it traced: it is to trace again, with their values.

With ``dynamic=True`` a module's float is an input, a 0-dim tensor that the graph reads by ``item()``. Many operators
ask a float for its value (the ``eps`` of a layer norm, the ``p`` of a dropout), which fixes it. Plain torch.compile
finds that out at the end of AOTAutograd's trace, and has Dynamo begin again without these inputs
(torch/fx/passes/_tensorify_python_scalars.py). The same can be told before anything is compiled, from the symbols.

Private names: torch._dynamo.symbolic_convert.TensorifyState.{specialize, should_specialize},
torch._dynamo.exc.TensorifyScalarRestartAnalysis, torch.SymFloat.node._expr, torch.fx.Node.meta["example_value"],
torch._subclasses.fake_tensor.FakeTensor.fake_mode. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any, NoReturn

import torch
import torch.fx
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState
from torch._subclasses.fake_tensor import FakeTensor

from precompiled.torch_internals.graph import operation_effects


class FixedFloats(Exception):
    """The graph is none, since Dynamo has fixed floats of it. ``names``: of their symbols."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


def fixed(value: torch.SymFloat) -> str:
    """The name of a float's symbol where its value is fixed and Dynamo can trace without it; else ""."""
    symbol, content = value.node._expr, value.node.expr
    if not symbol.is_Symbol or not content.is_number:
        return ""
    name = str(symbol)
    # Dynamo was told already and has kept the input: it would come back for ever.
    return "" if TensorifyState.should_specialize(name) else name


def ignored(read: torch.fx.Node) -> str:
    """The name of the symbol that the node ``read`` gives, where no operation looks at this float; else "".

    Plain torch.compile fixes such a float, since no tensor takes its place (the ``norm_type`` of an embedding).
    """
    value = read.meta["example_value"]
    if not isinstance(value, torch.SymFloat) or not value.node._expr.is_Symbol:
        return ""
    name = str(value.node._expr)
    if TensorifyState.should_specialize(name) or not all(_ignores(user, read) for user in read.users):
        return ""
    return name


def _ignores(user: torch.fx.Node, read: torch.fx.Node) -> bool:
    """Whether a function of torch's in Python passes the value of ``read`` to no operator: it runs without that value,
    on fake tensors, as it has in Dynamo.
    """
    if user.op != "call_function" or not isinstance(user.target, FunctionType) or operation_effects.written(user):
        return False

    def value_of(node: torch.fx.Node) -> Any:
        return _Unreadable() if node is read else node.meta["example_value"]

    made = user.meta.get("example_value")
    if not isinstance(made, FakeTensor):
        return False
    try:
        with made.fake_mode:
            user.target(*torch.fx.map_arg(user.args, value_of), **torch.fx.map_arg(user.kwargs, value_of))
    except Exception:  # noqa: BLE001 - it has looked, or needs more than its example
        return False
    return True


class _Unreadable:
    """In the place of a float: raises where code looks at it."""

    def _raises(self, *_: Any) -> Any:
        raise TypeError("it was looked at")

    __eq__ = __ne__ = _raises
    __bool__ = __float__ = __int__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _raises
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = _raises
    __rpow__ = __neg__ = __abs__ = __getattr__ = _raises
    __hash__ = _raises


def trace_again(floats: FixedFloats) -> NoReturn:
    """Have Dynamo begin its trace again, as AOTAutograd does: to be called in a backend."""
    for name in floats.names:
        TensorifyState.specialize(name)
    raise TensorifyScalarRestartAnalysis
