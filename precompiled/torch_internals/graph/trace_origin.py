"""Finds the origin of a graph: the traced function, the files of inlined code, and the files of the operations.

traced_code lists the code objects that Dynamo has inlined for the current frame. node.stack_trace adds the lines of the
operations (source_lines.py). If traced_code is missing, the files of functions that leave no operation in the graph are
unknown. Then ``watch`` sees an edit of such a file only because it also records the imported modules
(precompiled/watch/recorder.py).

Private names: torch._guards.TracingContext.{try_get, traced_code}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import logging
import os
from types import CodeType

import torch
import torch.fx
from torch._guards import TracingContext

from precompiled.core import interruptions
from precompiled.core.files import is_torchs
from precompiled.torch_internals.graph import source_lines

log = logging.getLogger("precompiled.traced")


def function() -> CodeType | None:
    """The code of the function that Dynamo is tracing, or None if it is unknown."""
    codes = getattr(TracingContext.try_get(), "traced_code", None)
    return codes[0] if codes else None


def files(module: torch.fx.GraphModule) -> set[str]:
    """Absolute paths of the source files. Torch's own files are left out because the key contains torch's version."""
    context = TracingContext.try_get()
    found = {code.co_filename for code in getattr(context, "traced_code", None) or ()}
    try:
        found |= {place[0] for place in source_lines.collect(module)["places"]}
    except Exception as error:  # unusual stack traces: only the inlined code is known then
        interruptions.pass_on(error)
        log.debug("no source lines for a graph", exc_info=True)
    return {path for path in found if os.path.isabs(path) and not is_torchs(path)}
