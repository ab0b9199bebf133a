"""Loads the graphs of an entry from their artifacts, as the callables that the entry's bytecode calls."""

from __future__ import annotations

import contextvars
import functools
import json
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from precompiled.client import load as loading
from precompiled.client import session as sessions
from precompiled.client.dispatch import Dispatch, counting
from precompiled.client.ledger import GraphCalls, GraphReport
from precompiled.client.safe_points import SafePoint
from precompiled.client.submit import Submitter, as_required
from precompiled.core.errors import Bypass, StoreError
from precompiled.graph import capture, devices
from precompiled.packages.describe.errors import Mismatch
from precompiled.packages.dynamo import dynamo_state
from precompiled.packages.dynamo.frame_entry import Graph
from precompiled.store.artifacts import Artifact
from precompiled.torch_internals.client import cuda_graph_capture
from precompiled.torch_internals.eager import stand_in
from precompiled.torch_internals.graph import graph_codec
from precompiled.torch_internals.graph.symbolic_sizes import guard_check
from precompiled.torch_internals.ranks import group_names
from precompiled.torch_internals.user_code import custom_ops, program_classes

if TYPE_CHECKING:
    from precompiled.core.program_data import ProgramData


def load(
    session: sessions.Session,
    graph: Graph,
    artifacts: list[Artifact],
    context: contextvars.Context,
    safe_point: SafePoint,
) -> tuple[Callable[..., object], GraphCalls]:
    """Load the callable of a graph from its artifacts.

    ``context`` has the settings of torch that a load reads. ``safe_point`` is the safe point of the graph's function.
    Raises StoreError if an artifact cannot be read, and Mismatch if the graph does not fit this process.
    """
    # A graph without CPU kernels has no "threads", and a graph that is not on a GPU has no "sdp_priority".
    state = dynamo_state.modes_of_a_compile(bool(graph.modes["threads"]), bool(graph.modes["sdp_priority"]))
    changed = [name for name in state if state[name] != graph.modes.get(name)]
    if changed:
        name = changed[0]
        raise Mismatch(f"{name} is {state[name]!r} here, {graph.modes.get(name)!r} when it was traced")
    try:
        custom_ops.compare(graph.modules)
        classes = program_classes.find(graph.modules)
    except (Exception, SystemExit) as error:  # an import of the user's module may raise anything
        raise Mismatch(f"its operators differ: {error}") from error
    if safe_point.is_held():  # a checkpoint would repeat an eager run, but this graph would run compiled
        raise Mismatch("a checkpoint is to run again what another graph of the function ran eager")
    started = time.perf_counter()
    calls = GraphCalls(GraphReport(id=uuid.uuid4().hex, name=graph.name, key=graph.key))
    whole = next((artifact for artifact in artifacts if not artifact.manifest.guards), None)
    if whole is not None:
        function = counting(calls, _loaded(session, graph, whole, classes, context))
    else:
        function = _dispatched(session, graph, artifacts, calls, classes, context, safe_point)
    calls.loaded("package", time.perf_counter() - started, (whole or artifacts[0]).manifest.compile_s)
    return function, calls


def _loaded(
    session: sessions.Session, graph: Graph, artifact: Artifact, classes: dict[str, type], context: contextvars.Context
) -> Callable[..., object]:
    try:
        return loading.load(
            session.store,
            artifact,
            graph.modes,
            cudagraphs=graph.cudagraphs,
            classes=classes,
            device=graph.device,
            groups=graph.groups,
            context=context,
        )
    except Bypass as error:
        raise Mismatch(f"an artifact is not for this process: {error}") from error


def _dispatched(
    session: sessions.Session,
    graph: Graph,
    artifacts: list[Artifact],
    calls: GraphCalls,
    classes: dict[str, type],
    context: contextvars.Context,
    safe_point: SafePoint,
) -> Callable[..., object]:
    """Serve a graph whose artifacts are valid for only some sizes.

    A call with other sizes runs eager and submits a variant, as after a swap. The stand-in is built now: once Dynamo
    has the graph, a call must not fail because an artifact was evicted or a source file was edited.
    """
    kept = program_of(session, artifacts[0])
    if "meshes" in kept["inputs"]:
        raise Mismatch("its graph has meshes, and no further sizes of it can be compiled without a trace")
    program = capture.restore_program(
        kept,
        graph.modes,
        graph.device,
        graph.cudagraphs,
        graph.size_inputs,
        graph.modules,
        classes,
        graph.groups,
        context,
    )
    about = kept.get(capture.ABOUT)
    submitter = Submitter(session, calls, lambda: json.dumps(about) if about else "")
    if session.settings.mode != "lookup":
        session.daemon.begin()  # start the daemon now, so that a later submit does not wait for it

    def request(sizes: list[int]) -> None:
        if session.settings.mode != "lookup" and session.daemon.problem() is None:
            submitter.request_variant(program, dispatch, sizes)

    program = as_required(session, program)
    try:
        eager = eager_of(devices.for_a_client(group_names.for_a_client(kept, graph.groups), graph.device))
    except Exception as error:  # an import failed, or a custom operator has other kernels
        raise Mismatch(f"its graph cannot be run eager here: {error}") from error
    is_capturing = cuda_graph_capture.is_capturing if graph.device != "cpu" else None
    dispatch = Dispatch(
        calls,
        eager,
        graph.size_inputs,
        request,
        is_capturing,
        safe_point,
        waits=bool(program.no_stand_in),
        without_a_job=lambda sizes: submitter.without_a_job(program, dispatch, sizes),
        raised=functools.partial(session.outcomes.stand_in_raised, calls),
    )
    served = set()
    for artifact in artifacts:
        if artifact.manifest.guards in served:
            continue  # a tuned artifact comes before the untuned one with the same guards
        served.add(artifact.manifest.guards)
        dispatch.serve_with(_loaded(session, graph, artifact, classes, context), guard_check(artifact.manifest.guards))
    return dispatch.call


def program_of(session: sessions.Session, artifact: Artifact) -> ProgramData:
    """The parsed graph from which an artifact was compiled (program.json.gz). Raises StoreError if the artifact lacks
    it.
    """
    data = session.store.read_program(artifact)
    if data is None:
        raise StoreError(
            f"the artifact {artifact.manifest.key[:12]} is for some sizes, and does not say what it was compiled from",
            "Save the package again",
            code="artifact-program",
        )
    return capture.parse(data)


def eager_of(program: ProgramData) -> stand_in.StandIn:
    """A stand-in that runs a stored graph eagerly."""
    return stand_in.StandIn(graph_codec.decode(program["graph"]))
