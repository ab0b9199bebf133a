"""Adds this project's reports to torch's structured trace (``TORCH_TRACE``, which tlparse shows).

- Each graph gets a JSON document ``precompiled_<way>`` in Dynamo's compile of the graph. Torch calls such a document an
  artifact. The ways are hit, miss, swap, package, in_process, eager and error. The document contains the fields of the
  graph's report, except the spans.
- Each frame gets a document ``precompiled_frame``. It says whether a package served the frame, and why other entries
  could not serve the frame.

If structured tracing is off, a report costs one check of a list.

Private names: torch._logging._internal.{trace_structured, trace_log}, torch._guards.{CompileContext.current_compile_id,
compile_context}, torch._dynamo.types.ConvertFrameReturn.guarded_code.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from torch._guards import CompileContext, compile_context
from torch._logging._internal import trace_log, trace_structured

from precompiled.core import interruptions

log = logging.getLogger("precompiled.structured")

# Maps a graph's id to Dynamo's compile id, because a swap happens after Dynamo's compile has ended. Filled only while
# structured tracing is on.
_compiles: dict[str, Any] = {}


def is_on() -> bool:
    return bool(trace_log.handlers)


def graph(way: str, report: Mapping[str, Any]) -> None:
    """Add a graph's report to the trace. ``way`` is part of the document's name."""
    if is_on():
        here = CompileContext.current_compile_id()
        if here is not None:
            _compiles[report["id"]] = here
        document = {name: value for name, value in report.items() if name != "spans"}
        _artifact(f"precompiled_{way}", document, _compiles.get(report["id"]))


def belong(graphs: list[str], result: object) -> None:
    """Record that a package serves these graphs (ids) for a frame. ``result`` is Dynamo's result for the frame."""
    if is_on():
        _compiles.update(dict.fromkeys(graphs, _compile_of(result)))


def frame(report: Mapping[str, object], result: object) -> None:
    """Add a frame's report to the trace."""
    if is_on():
        _artifact("precompiled_frame", dict(report), _compile_of(result))


def _compile_of(result: object) -> object:
    return getattr(getattr(result, "guarded_code", None), "compile_id", None)


def _artifact(name: str, document: Mapping[str, object], compile_id: object) -> None:
    try:
        # Write the report into the compile that it belongs to, even if that compile has ended or was skipped.
        with nullcontext() if compile_id is None else compile_context(CompileContext(compile_id)):
            trace_structured(
                "artifact",
                metadata_fn=lambda: {"name": name, "encoding": "json"},
                payload_fn=lambda: document,
                expect_trace_id=False,
            )
    except Exception as error:  # noqa: BLE001 - a failed trace record must not fail the graph
        interruptions.pass_on(error)
        log.info("torch's trace lacks %s: %s", name, error)
