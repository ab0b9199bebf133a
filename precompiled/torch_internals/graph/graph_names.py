"""Derives a readable name for a graph from the function that Dynamo is compiling and from the compile id.

If the function is unknown or torch's own (a module of torch, an optimizer's step), the name is the class of the graph's
outermost module, or else the function of the first operation that has a stack trace, or else "graph".

Private names: torch.fx.GraphModule.meta["dynamo_compile_id"], torch.fx.Node.meta["nn_module_stack"].
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import re

import torch.fx

from precompiled.core.files import is_torchs
from precompiled.torch_internals.graph import trace_origin


def graph_name(module: torch.fx.GraphModule) -> str:
    """Return a name such as ``GPT.forward [0/0]``, without file and line, because these change with every edit."""
    compile_id = module.meta.get("dynamo_compile_id")
    shown = f" [{compile_id}]" if compile_id is not None else ""
    return f"{_function_name(module)}{shown}"


def _function_name(module: torch.fx.GraphModule) -> str:
    code = trace_origin.function()
    if code is not None and not is_torchs(code.co_filename):
        # After a graph break, the code is Dynamo's resume function, whose name contains the original function's name.
        resumed = re.fullmatch(r"torch_dynamo_resume_in_(.+)_at_\d+", code.co_name)
        return resumed.group(1) if resumed else getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    for node in module.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            # Each value is a pair of a module's qualified name and class. The outermost module comes first.
            _path, kind = next(iter(stack.values()))
            return kind.rpartition(".")[2] if isinstance(kind, str) else kind.__name__
    for node in module.graph.nodes:
        trace = node.stack_trace
        if trace:
            # The first such line is the outermost frame that Dynamo has recorded: 'File "x.py", line 3, in function'.
            # Dynamo leaves out frames of torch.
            first = next((line for line in trace.splitlines() if ", in " in line), "")
            if first:
                return first.rpartition(", in ")[2].strip()
    return "graph"
