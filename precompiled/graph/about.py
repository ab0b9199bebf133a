"""What people are told of a graph, beside the program: where it comes from, who called it and set what, on what CPU.

Collected when a graph is submitted, so that a hit costs nothing; neither the key nor the compile depends on it. To
what torch_internals/graph/source_lines.py says it adds::

    "set": {"inductor.max_autotune": "options", "variable CPATH": "program", ...}     who set what (below)
    "cpu": {"model": "...", "flags": "avx avx2 ..."}                                  what the key has a digest of

A setting is set by "options" (``mode=`` or ``options=`` of torch.compile) or by the "program", elsewhere, at run time;
one that is not named is as torch was imported with it. A variable that the "program" has set was not so when the
process was started.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import torch.fx

from precompiled.graph import environment
from precompiled.torch_internals.graph import compiler_config, source_lines

log = logging.getLogger("precompiled.about")

# It must stay small beside its graph; what is longer is not sent.
MAX_CHARS = 1 << 20


def text(module: torch.fx.GraphModule, options: Mapping[str, Any]) -> str:
    """The JSON text; "" where it cannot be made. Never raises: a graph is sent with or without it.

    ``options``: torch.compile's, as ``capture`` gets them.
    """
    try:
        found = {
            **source_lines.collect(module),
            "calls": source_lines.calls(),
            "set": {
                **{f"variable {name}": "program" for name in environment.set_by_program()},
                **dict.fromkeys(compiler_config.changed(), "program"),
                **{f"inductor.{name}": "options" for name in options},
            },
            "cpu": environment.cpu_in_words(),
        }
        shown = json.dumps(found, separators=(",", ":"))
        return shown if len(shown) <= MAX_CHARS else ""
    except Exception:  # an odd stack trace must not keep the graph from being sent
        log.debug("nothing is told of a graph", exc_info=True)
        return ""
