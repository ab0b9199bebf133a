"""The place of each operation of a graph: file, line, function and the line of code. For people; not part of the key.

Places are collected when a graph is submitted, so that a hit costs nothing, and sent beside the program
(graph/capture.py, ``about``)::

    {"places": [[file, line, function, code], ...],     each place once
     "nodes": [[place or -1, ...], ...],                one list for each graph, in the order of codec.py
     "inputs": [name, ...]}                             Dynamo's names of the inputs

Private names: torch.fx.Node.meta["stack_trace"]. Checked on 2.11.0, 2.13.0, 2.15.0. Read as the public
``Node.stack_trace``, in the form of ``traceback.StackSummary.format``. Without it no places are known.
"""

from __future__ import annotations

import json
import linecache
import logging
import re
from typing import Any

import torch
import torch.fx

from precompiled.core.files import innermost_users

log = logging.getLogger("precompiled.source_lines")

# A line of generated code can be of any length.
MAX_CODE_CHARS = 160
MAX_NAME_CHARS = 500
# Source lines must stay small beside their graph; longer ones are not sent.
MAX_CHARS = 1 << 20

_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)

Place = tuple[str, int, str, str]


def about(module: torch.fx.GraphModule) -> str:
    """The JSON text; "" where it cannot be made. Never raises: a graph is sent with or without it."""
    try:
        text = json.dumps(_collect(module), separators=(",", ":"))
        return text if len(text) <= MAX_CHARS else ""
    except Exception:  # an odd stack trace must not keep the graph from being sent
        log.debug("no source lines for a graph", exc_info=True)
        return ""


def _collect(module: torch.fx.GraphModule) -> dict[str, Any]:
    places: dict[Place, int] = {}
    known: dict[str, int] = {}  # several nodes often have one stack trace

    def number(trace: str | None) -> int:
        if not trace:
            return -1
        if trace not in known:
            place = _place(trace)
            known[trace] = -1 if place is None else places.setdefault(place, len(places))
        return known[trace]

    nodes = [[number(node.stack_trace) for node in graph.graph.nodes] for graph in _graphs(module)]
    inputs = [str(node.target)[:MAX_NAME_CHARS] for node in module.graph.nodes if node.op == "placeholder"]
    return {"places": list(places), "nodes": nodes, "inputs": inputs}


def _graphs(module: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """The graph and its subgraphs, in the order in which codec.py numbers them."""
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
    code = linecache.getline(file, int(line)).strip()
    return file[:MAX_NAME_CHARS], int(line), function[:MAX_NAME_CHARS], code[:MAX_CODE_CHARS]
