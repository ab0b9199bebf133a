"""Floats that Dynamo passes as tensors and has fixed while it traced: it is to trace again, with their values.

With ``dynamic=True`` a module's float is an input, a 0-dim tensor that the graph reads by ``item()``. Many operators
ask a float for its value (the ``eps`` of a layer norm, the ``p`` of a dropout), which fixes it. Plain torch.compile
finds that out at the end of AOTAutograd's trace, and has Dynamo begin again without these inputs
(torch/fx/passes/_tensorify_python_scalars.py). The same can be told before anything is compiled, from the symbols.

Private names: torch._dynamo.symbolic_convert.TensorifyState.{specialize, should_specialize},
torch._dynamo.exc.TensorifyScalarRestartAnalysis, torch.SymFloat.node._expr. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch._dynamo.exc import TensorifyScalarRestartAnalysis
from torch._dynamo.symbolic_convert import TensorifyState


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


def trace_again(floats: FixedFloats) -> NoReturn:
    """Have Dynamo begin its trace again, as AOTAutograd does: to be called in a backend."""
    for name in floats.names:
        TensorifyState.specialize(name)
    raise TensorifyScalarRestartAnalysis
