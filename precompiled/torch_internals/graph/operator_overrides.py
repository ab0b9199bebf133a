"""Refuses graphs that may use an operator that the program has changed, because a worker lacks the change.

Any graph may use the operators of aten, prims, prim and Python, and torch's higher-order operators. For other
operators, only graphs that call the operator are refused.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

from typing import Any

from precompiled.core.errors import Bypass
from precompiled.torch_internals.graph import call_targets
from precompiled.torch_internals.user_code import dispatcher_overrides, inductor_overrides

# Torch's operators are composed of operators in these namespaces, so any graph may use these operators.
_ANYWHERE = frozenset({"aten", "prims", "prim"})


def refuse(graphs: list[list[list[Any]]]) -> None:
    """Raises Bypass if the program has overridden an operator that these graphs (graph_codec.encode) may use."""
    overrides = {
        **dispatcher_overrides.find_overrides(call_targets.BUILTIN_OP_NAMESPACES),
        **inductor_overrides.find_overrides(call_targets.BUILTIN_OP_NAMESPACES),
    }
    if not overrides:
        return
    called = {"::".join(node[1][1:3]) for graph in graphs for node in graph if node[0] == "f" and node[1][0] == "op"}
    for operator, what in overrides.items():
        namespace, separator, _ = operator.partition("::")
        if not separator or namespace in _ANYWHERE or operator in called:
            raise Bypass(f"the program changed the compile of {operator}: {what}", code="operator-override")
