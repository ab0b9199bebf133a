"""Builds the entry of a trace: header, description and pickled body."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from precompiled.packages.describe.codes import code_digest, outermost
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo import dynamo_state, entry_codec, frame_entry, trace_recording
from precompiled.packages.dynamo.frame_entry import Frame, Traced
from precompiled.packages.function_report import FunctionReport
from precompiled.packages.program import Program
from precompiled.store import package_format as fmt


class BuiltEntry(NamedTuple):
    """The parts of an entry, ready to be published."""

    header: fmt.Header
    about: fmt.About
    body: bytes


def build_entry(
    frame: Frame, traced: Traced, requires: dict[str, str], program: Program, report: FunctionReport
) -> Callable[[], BuiltEntry]:
    """Return a function that builds the entry of a trace and holds no object of the user's program.

    Both functions raise NotPortable.
    """
    if traced.body is not None:
        trace_recording.check_bytecode(traced, frame)
    if traced.problem is not None:
        raise traced.problem
    header = fmt.Header(
        frame.function_key,
        frame.module,
        frame.qualname,
        code_digest(frame.code),
        frame.one_graph,
        "compiled" if traced.skip is None else "skipped",
        requires,
        first=frame.first,
        sources=program.sources,
    )
    if traced.skip is not None:
        report.message = traced.skip
        if dynamo_state.passing():
            raise NotPortable(
                "errors are suppressed or Dynamo is debugged, so Dynamo may skip it only this time",
                code="package-passing",
            )
        left, reason = trace_recording.make_skipped_frame(frame, traced), traced.skip
        data = entry_codec.encode(left, traced.names)
        header = replace(header, meaning=hashlib.sha256(data).hexdigest())
        return lambda: BuiltEntry(header, fmt.About(reason=reason), data)
    # ``complete`` must not hold ``traced``, which holds objects of the user's program.
    body, names, about, locals_ = traced.body, traced.names, traced.about, traced.locals
    assert body is not None
    met = frame_entry.qualnames(traced)
    for function, code in program.later().items():
        if outermost(code) not in met and code_digest(code) in traced.described:
            body.later[function] = code_digest(code)
    report.guards = len(body.guards.guards)

    def complete() -> BuiltEntry:
        bytecode = frame_entry.bytecode_digest(body, names)
        whole = replace(
            header,
            artifacts=[graph.key for graph in body.graphs],
            locals=locals_,
            guards=report.guards,
            program=bytecode,
            meaning=frame_entry.meaning(body, about, bytecode),
        )
        return BuiltEntry(whole, about, entry_codec.encode(body, names))

    return complete
