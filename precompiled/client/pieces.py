"""Serves a graph by the artifacts of its pieces until the artifact of the whole graph arrives.

If a model has N equal layers, the worker compiles one layer instead of N (torch_internals/graph/layers.py). Each piece
has a key of its own. Other graphs with this piece find its artifact, such as the graph of a deeper model, or of the
same model after an edit of its loss.

The pieces serve the graph once all pieces are loaded. If one piece cannot be compiled, the graph waits only for the
artifact of the whole graph.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from precompiled.client.ledger import GraphCalls, GraphReport
from precompiled.client.load import load_for_graph
from precompiled.client.submit import Submitter
from precompiled.client.swap import Event
from precompiled.client.swapping import IN_PIECES
from precompiled.core import interruptions
from precompiled.core.errors import Bypass, StoreError, code_of
from precompiled.graph import capture, key
from precompiled.torch_internals.eager.stand_in import StandIn
from precompiled.torch_internals.graph import layers

if TYPE_CHECKING:
    from precompiled.client.dispatch import Dispatch
    from precompiled.client.session import Session
    from precompiled.torch_internals.client.graph_lowering import Plain

log = logging.getLogger("precompiled.pieces")

# If the program runs eager meanwhile, a graph is cut only if its pieces have at most this share of its operations. The
# pieces delay the artifact of the whole graph by up to a minute, so they must be ready much earlier than this artifact
# (docs/decisions/0062).
MOST_BESIDE_EAGER = 0.2


class Pieces:
    """The pieces of one graph. Thread-safe."""

    def __init__(self, session: Session, graph: Plain, cut: layers.Cut, calls: GraphCalls, dispatch: Dispatch) -> None:
        self._session = session
        self._graph = graph
        self._cut = cut
        self._calls = calls
        self._dispatch = dispatch
        self._lock = threading.Lock()
        self._functions: list[Callable[..., Any] | None] = [None] * len(cut.pieces)
        self._began = time.monotonic()
        self.settled = threading.Event()  # set when the pieces serve the graph, or cannot serve it

    def begin(self, programs: Sequence[capture.SerializedGraph]) -> None:
        """Load the pieces that the store has, and submit the others."""
        missing = [number for number, program in enumerate(programs) if not self._load(number, program)]
        if not missing:
            self._session.began_in_pieces(self._calls.report)
        for number in missing:
            failure = self._session.store.failure(key.key(programs[number].sections))
            if failure is not None:
                self.fail(failure.reason, failure.message)
                return
        for number in missing:
            self._submit(number, programs[number])

    def _load(self, number: int, program: capture.SerializedGraph) -> bool:
        for artifact in self._session.store.lookup(key.key(program.sections)):
            if artifact.manifest.guards:
                continue
            try:
                function = load_for_graph(self._session.store, artifact, program)
            except (Bypass, StoreError, FileNotFoundError) as error:
                interruptions.pass_on(error)
                continue
            self.serve(number, function)
            return True
        return False

    def _submit(self, number: int, program: capture.SerializedGraph) -> None:
        name = f"{self._calls.report.name}, piece {number + 1} of {len(self._cut.pieces)}"
        calls = GraphCalls(GraphReport(id=uuid.uuid4().hex, name=name, key=key.key(program.sections)))
        calls.swap.on(Event.MISS)
        submitter = Submitter(self._session, calls, lambda: "", piece=Piece(self, number))
        submitter.submit_and_await(program, self._dispatch, program.hints, calls.swap, calls.report.id)

    def serve(self, number: int, function: Callable[..., Any]) -> None:
        """Take the compiled code of a piece. When the last piece has arrived, the pieces serve the graph."""
        with self._lock:
            self._functions[number] = function
            functions = [one for one in self._functions if one is not None]
            if len(functions) < len(self._functions) or self.settled.is_set():
                return
        if not self._dispatch.is_served():
            self._calls.report.message = IN_PIECES
            run = StandIn(self._graph.module, run=layers.composed(self._cut, functions))
            self._dispatch.serve_with(run, in_pieces=True)
        log.info("graph %s runs in pieces after %.2f s", self._calls.report.name, time.monotonic() - self._began)
        self.settled.set()

    def fail(self, code: str, message: str) -> None:
        """Wait only for the artifact of the whole graph, because one piece will have no artifact."""
        log.info("graph %s is not served in pieces (%s): %s", self._calls.report.name, code, message)
        self._session.ledger.count_reason("fallbacks", code)
        self.settled.set()


class Piece:
    """One piece of a graph, for the code that awaits its artifact."""

    def __init__(self, pieces: Pieces, number: int) -> None:
        self._pieces, self._number = pieces, number

    def serve(self, function: Callable[..., Any]) -> None:
        self._pieces.serve(self._number, function)

    def fail(self, code: str, message: str) -> None:
        self._pieces.fail(code, message)


def begin(
    session: Session,
    graph: Plain,
    options: Mapping[str, Any],
    calls: GraphCalls,
    dispatch: Dispatch,
    program: capture.SerializedGraph,
) -> Pieces | None:
    """Serve a graph in pieces if it has equal layers. Returns None for a graph without equal layers, or one that cannot
    be cut.
    """
    if session.settings.tiers == "default" or not _may_be_cut(program):
        return None
    started = time.perf_counter()
    try:
        cut = layers.cut(graph.module)
        if cut is not None and session.settings.mode != "wait" and cut.share > MOST_BESIDE_EAGER:
            cut = None
        programs = [capture.capture(piece, options) for piece in cut.pieces] if cut is not None else []
        calls.spent("cut", time.perf_counter() - started)
        if cut is None or not all(map(_may_be_cut, programs)):
            return None
        pieces = Pieces(session, graph, cut, calls, dispatch)
        pieces.begin(programs)
        return pieces
    except Exception as error:  # the whole graph suffices
        interruptions.pass_on(error)
        session.ledger.count_reason("fallbacks", code_of(error, "internal-error"))
        log.info("graph %s is not cut into pieces: %s", calls.report.name, error, exc_info=True)
        return None


def _may_be_cut(program: capture.SerializedGraph) -> bool:
    return not (
        program.no_stand_in
        or program.modes["deterministic"]  # results must not depend on the time of a swap
        or program.hints
        or program.floats
        or program.cudagraphs
        or program.groups
        or program.meshes
        or program.weights is not None
    )
