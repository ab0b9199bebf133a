"""Describes a graph for reports: its source lines, its callers, its settings and the CPU.

Only the submit of a graph collects the description, so a hit needs no time for it. Neither the key nor the compile
depends on the description. The description has the fields of torch_internals/graph/source_lines.py, and::

    "set": {"inductor.max_autotune": "options", "variable CPATH": "program", ...}     what set each (below)
    "cpu": {"model": "...", "flags": "avx avx2 ..."}                                  the key has a digest of the flags

"options" means that ``mode=`` or ``options=`` of torch.compile set a setting; "program" means that other code of the
program set it at run time. Unlisted settings have not changed since torch was imported. For a variable,
"program" means that its value has changed since the start of the process.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

import torch.fx

from precompiled.core import interruptions
from precompiled.graph import environment
from precompiled.torch_internals.graph import compiler_config, source_lines

log = logging.getLogger("precompiled.about")

# A longer description is not sent: descriptions must be small compared with their graphs.
MAX_CHARS = 1 << 20


def text(module: torch.fx.GraphModule, options: Mapping[str, object]) -> str:
    """Return the description as JSON text, or "" if it cannot be made. Never raises, so the graph is sent in any case.

    ``options`` are the options of torch.compile, as in ``capture``.
    """
    try:
        found = {
            **source_lines.collect(module),
            "calls": source_lines.calls(),
            "set": {
                **{f"variable {name}": "program" for name in environment.set_by_program()},
                **dict.fromkeys(compiler_config.changed_settings(), "program"),
                **{f"inductor.{name}": "options" for name in options},
            },
            "cpu": environment.cpu_in_words(),
        }
        shown = json.dumps(found, separators=(",", ":"))
        return shown if len(shown) <= MAX_CHARS else ""
    except Exception as error:  # an odd stack trace must not prevent the submit
        interruptions.pass_on(error)
        log.debug("a graph has no description", exc_info=True)
        return ""
