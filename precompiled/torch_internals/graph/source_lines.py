"""Finds the source line of each operation of a graph: file, line, function and code.

The lines are for display only, so they are not in the key.

The lines are collected when a graph is submitted, so a cache hit costs nothing. The client sends the lines together
with the program (graph/about.py)::

    {"places": [[file, line, function, code], ...],     each place once
     "nodes": [[place or -1, ...], ...],                one list per graph, in the order of graph_codec.py
     "inputs": [name, ...],                             the program's names of the inputs: ``self.fc.weight``
     "calls": [[file, line, function, code], ...]}      the user's frames that led to the trace, innermost first

This file reads stack traces from the public ``Node.stack_trace``. Their text has the form of
``traceback.StackSummary.format``. If a graph has no stack traces, ``places`` is empty. If torch lacks the private names
below, inputs keep Dynamo's names.

Private names: torch.fx.Node.meta["stack_trace"], torch.fx.Node._dynamo_source, torch._guards.Source.name. Checked on
2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import linecache
import re
import sys
from types import FrameType
from typing import Any

import torch
import torch.fx

from precompiled.core.files import innermost_users, is_users
from precompiled.core.names import in_words

# A line of generated code can have any length, so longer lines are shortened.
MAX_CODE_CHARS = 160
MAX_NAME_CHARS = 500
MAX_CALLS = 8

_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)

Place = tuple[str, int, str, str]


def collect(module: torch.fx.GraphModule) -> dict[str, Any]:
    """The dict that the module docstring describes, without ``calls``. May raise on unusual stack traces."""
    places: dict[Place, int] = {}
    known: dict[str, int] = {}  # several nodes often share a stack trace

    def number(trace: str | None) -> int:
        if not trace:
            return -1
        if trace not in known:
            place = _place(trace)
            known[trace] = -1 if place is None else places.setdefault(place, len(places))
        return known[trace]

    nodes = [[number(node.stack_trace) for node in graph.graph.nodes] for graph in _graphs(module)]
    inputs = [input_name(node)[:MAX_NAME_CHARS] for node in module.graph.nodes if node.op == "placeholder"]
    return {"places": list(places), "nodes": nodes, "inputs": inputs}


def calls() -> list[Place]:
    """The user's frames of this thread, innermost first: the calls that led to the trace."""
    found: list[Place] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < MAX_CALLS:
        file = frame.f_code.co_filename
        # Frames without a file ("<string>", "<frozen importlib>") have no line to show.
        if is_users(file) and not file.startswith("<frozen"):
            found.append(_shown(file, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def input_name(node: torch.fx.Node) -> str:
    """An input's name in the program, or Dynamo's name if the program has none for it."""
    name = getattr(getattr(node, "_dynamo_source", None), "name", None)
    source = name() if callable(name) else name
    return in_words(source) if isinstance(source, str) else str(node.target)


def _graphs(module: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """The graph and its subgraphs, in the order in which graph_codec.py numbers them."""
    found: dict[int, torch.fx.GraphModule] = {id(module): module}
    for node in module.graph.nodes:
        held = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(held, torch.fx.GraphModule) and id(held) not in found:
            found.update({id(inner): inner for inner in _graphs(held) if id(inner) not in found})
    return list(found.values())


def _place(trace: str) -> Place | None:
    frames = _FRAME.findall(trace)
    if not frames:
        return None
    file, line, function = innermost_users(frames, lambda frame: frame[0])
    return _shown(file, int(line), function)


def _shown(file: str, line: int, function: str) -> Place:
    code = linecache.getline(file, line).strip()
    return file[:MAX_NAME_CHARS], line, function[:MAX_NAME_CHARS], code[:MAX_CODE_CHARS]
