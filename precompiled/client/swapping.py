"""Loads the artifact of a pending graph for the graph's next call."""

from __future__ import annotations

import time

from precompiled.client.awaited import Awaited, SessionView
from precompiled.client.load import load_for_graph
from precompiled.client.proof import can_check, prove
from precompiled.client.swap import Event
from precompiled.core.errors import Bypass, StoreError
from precompiled.store.artifacts import Artifact
from precompiled.torch_internals.client import cuda_graph_capture
from precompiled.torch_internals.eager.stand_in import StandIn
from precompiled.torch_internals.graph.symbolic_sizes import guard_check

IN_PIECES = "runs compiled in pieces until the artifact of the whole graph is ready"


def swap_in(session: SessionView, item: Awaited, artifact: Artifact) -> Exception | None:
    """Load the artifact and make it serve the graph. Returns the error if the artifact cannot be used."""
    report = item.calls.report
    started = time.perf_counter()
    try:
        with cuda_graph_capture.unconcerned():
            function = load_for_graph(session.store, artifact, item.program)
    except (Bypass, StoreError, FileNotFoundError) as error:
        return error
    if item.piece is not None:
        item.swap.on(Event.LOADED)
        item.piece.serve(function)
        return None
    load_s = time.perf_counter() - started
    report.swapped_after_s = time.monotonic() - item.since
    if report.message == IN_PIECES:
        report.message = ""
    guards = artifact.manifest.guards
    function = prove(session, item.calls, artifact, function, lambda: _eager_to_check(item))
    item.dispatch.serve_with(function, guard_check(guards) if guards else None)
    item.calls.loaded("swap", load_s, artifact.manifest.compile_s, item.swap)
    session.ledger.count(swapped=1)
    session.loaded_from(artifact)
    return None


def _eager_to_check(item: Awaited) -> StandIn | None:
    eager = item.dispatch.eager
    return eager if isinstance(eager, StandIn) and can_check(item.program) else None
