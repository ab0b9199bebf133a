"""What torch's structured trace (``TORCH_TRACE``, which tlparse shows) is told of us.

For each graph an artifact ``precompiled_<way>`` beside what Dynamo says of the same compile: hit, miss, swap, package,
in_process, eager or error, with the report's fields. For each frame ``precompiled_frame``: whether a package served it,
and why each entry did not. Costs a look at a list where nobody traces.

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

log = logging.getLogger("precompiled.structured")

# Of each graph that was told of, Dynamo's number of the compile: a swap comes when that is over. Only while it traces.
_compiles: dict[str, Any] = {}


def is_on() -> bool:
    return bool(trace_log.handlers)


def graph(way: str, report: Mapping[str, Any]) -> None:
    """What has become of a graph: the fields of its report. ``way``: the artifact's name is made of it."""
    if is_on():
        here = CompileContext.current_compile_id()
        if here is not None:
            _compiles[report["id"]] = here
        told = {name: value for name, value in report.items() if name != "spans"}
        _artifact(f"precompiled_{way}", told, _compiles.get(report["id"]))


def belong(graphs: list[str], result: Any) -> None:
    """These graphs, by their ids, are those that a package has for a frame. ``result``: what Dynamo gets for it."""
    if is_on():
        _compiles.update(dict.fromkeys(graphs, _compile_of(result)))


def frame(report: Mapping[str, Any], result: Any) -> None:
    """What has become of a frame: the fields of its report."""
    if is_on():
        _artifact("precompiled_frame", dict(report), _compile_of(result))


def _compile_of(result: Any) -> Any:
    return getattr(getattr(result, "guarded_code", None), "compile_id", None)


def _artifact(name: str, document: dict[str, Any], compile_id: Any) -> None:
    try:
        # Said within the compile that it belongs to, also where that is over, or was spared.
        with nullcontext() if compile_id is None else compile_context(CompileContext(compile_id)):
            trace_structured(
                "artifact", metadata_fn=lambda: {"name": name, "encoding": "json"}, payload_fn=lambda: document,
                expect_trace_id=False,
            )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - a line for people is worth no graph
        log.info("torch's trace is not told of %s: %s", name, error)
