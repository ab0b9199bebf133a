"""What a graph was traced from: its function; and the files of all code that Dynamo inlined, and of every operation.

Private names: torch._guards.TracingContext.{try_get, traced_code}. Checked on 2.11.0, 2.13.0, 2.15.0. They are the code
objects that Dynamo has inlined for the frame in hand, read with what node.stack_trace says (source_lines.py). Where
traced_code is missing, functions that leave no operation behind are known by their imported modules only
(precompiled/client/recorder.py).
"""

from __future__ import annotations

import logging
import os
from types import CodeType

import torch
import torch.fx
from torch._guards import TracingContext

from precompiled.core.files import is_torchs
from precompiled.torch_internals.graph import source_lines

log = logging.getLogger("precompiled.traced")


def function() -> CodeType | None:
    """The code of the function that Dynamo is tracing; None where it is not known."""
    codes = getattr(TracingContext.try_get(), "traced_code", None)
    return codes[0] if codes else None


def files(module: torch.fx.GraphModule) -> set[str]:
    """Absolute paths of the files, without torch's own: the key has torch's version."""
    context = TracingContext.try_get()
    found = {code.co_filename for code in getattr(context, "traced_code", None) or ()}
    try:
        found |= {place[0] for place in source_lines.collect(module)["places"]}
    except Exception:  # an odd stack trace: then the inlined code is what is known
        log.debug("no source lines for a graph", exc_info=True)
    return {path for path in found if os.path.isabs(path) and not is_torchs(path)}
