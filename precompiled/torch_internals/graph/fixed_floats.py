"""Detects float inputs whose value Dynamo has fixed during the trace, or that no operation uses, and makes Dynamo
retrace without these inputs.

With ``dynamic=True`` a module's float becomes an input: a 0-dim tensor that the graph reads by ``item()``. Dynamo fixes
a float's value if an operator needs the value (the ``eps`` of a layer norm, the ``p`` of a dropout). Plain
torch.compile discovers such floats at the end of AOTAutograd's trace and restarts Dynamo without these inputs
(torch/fx/passes/_tensorify_python_scalars.py). This file detects fixed floats from the symbols, and unused floats by
calls on fake tensors, before any compile.

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

from precompiled.core import interruptions
from precompiled.torch_internals.graph import operation_effects


class FixedFloats(Exception):
    """Raised if a graph is unusable because Dynamo fixed floats. ``names``: the symbols of these floats."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(", ".join(names))
        self.names = names


def fixed_symbol(value: torch.SymFloat) -> str:
    """The name of a float's symbol if the float's value is fixed and Dynamo can trace without this input; else ""."""
    symbol, content = value.node._expr, value.node.expr
    if not symbol.is_Symbol or not content.is_number:
        return ""
    name = str(symbol)
    # If Dynamo has kept the input in spite of an earlier request, further requests would make Dynamo retrace forever.
    return "" if TensorifyState.should_specialize(name) else name


def ignored_symbol(read: torch.fx.Node) -> str:
    """The name of the symbol that the node ``read`` returns, if no operation uses the float's value; else "".

    Plain torch.compile fixes the value of an unused float, because no tensor replaces it. An example is the
    ``norm_type`` of an embedding.
    """
    value = read.meta["example_value"]
    if not isinstance(value, torch.SymFloat) or not value.node._expr.is_Symbol:
        return ""
    name = str(value.node._expr)
    if TensorifyState.should_specialize(name) or not all(_ignores(user, read) for user in read.users):
        return ""
    return name


def _ignores(user: torch.fx.Node, read: torch.fx.Node) -> bool:
    """Whether ``user`` calls a Python function of torch that runs on fake tensors without the value of ``read``."""
    if user.op != "call_function" or not isinstance(user.target, FunctionType):
        return False
    if operation_effects.written_arguments(user):
        return False

    def value_of(node: torch.fx.Node) -> object:
        return _Unreadable() if node is read else node.meta["example_value"]

    made = user.meta.get("example_value")
    if not isinstance(made, FakeTensor):
        return False
    try:
        with made.fake_mode:
            user.target(*torch.fx.map_arg(user.args, value_of), **torch.fx.map_arg(user.kwargs, value_of))
    except Exception as error:  # noqa: BLE001 - the function used the value, or needs more than fake tensors
        interruptions.pass_on(error)
        return False
    return True


class _Unreadable:
    """Replaces a float, and raises if code uses it."""

    def _raises(self, *_: Any) -> Any:
        raise TypeError("Dynamo read its value")

    __eq__ = __ne__ = _raises
    __bool__ = __float__ = __int__ = __index__ = __lt__ = __le__ = __gt__ = __ge__ = _raises
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = _raises
    __rpow__ = __neg__ = __abs__ = __getattr__ = _raises
    __hash__ = _raises


def trace_again(floats: FixedFloats) -> NoReturn:
    """Make Dynamo restart its trace without these floats, as AOTAutograd does. Call this inside a backend."""
    for name in floats.names:
        TensorifyState.specialize(name)
    raise TensorifyScalarRestartAnalysis
