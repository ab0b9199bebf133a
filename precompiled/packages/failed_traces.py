"""Reports traces that torch did not finish, in a process without packages. `explain` then names their errors."""

from __future__ import annotations

import time
from collections.abc import Callable

from precompiled.client import session as sessions
from precompiled.client.process import PROCESS
from precompiled.core import spans
from precompiled.packages.dynamo import trace_errors
from precompiled.packages.function_report import FunctionReport


def begin(name: str) -> Callable[[str, str], None]:
    """Begin the trace of a frame. The returned function reports the problem that ended the trace. If the trace had made
    a graph, the graph's report has the problem instead.
    """
    session = sessions.current()
    began, graphs = time.perf_counter(), len(session.ledger)

    def raised(problem: str, state: str) -> None:
        # After load_package(), packages/automatic.py reports the trace.
        if PROCESS.packages is not None or session.is_off or len(session.ledger) > graphs:
            return
        PROCESS.failed_traces.append(FunctionReport(name, state, message=problem))
        session.outcomes.note_frame(name, spans.span_until_now("trace", time.perf_counter() - began))

    return raised


def switch_on() -> None:
    trace_errors.install(begin)


def switch_off() -> None:
    trace_errors.remove()
