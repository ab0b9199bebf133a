"""Loads the graphs of an entry from their artifacts, for the entry's bytecode."""

from __future__ import annotations

import contextvars
import json
import logging
import time
import uuid
from collections.abc import Callable

from precompiled.client import session as sessions
from precompiled.client.dispatch import counting
from precompiled.client.ledger import GraphCalls, GraphReport, graph_calls
from precompiled.client.left_to_eager import measured_slower
from precompiled.client.load import load_for_graph
from precompiled.client.proof import can_check, prove
from precompiled.client.safe_points import SafePoint
from precompiled.client.submit import Submitter, as_required
from precompiled.core import interruptions
from precompiled.core.errors import Bypass, StoreError
from precompiled.core.program_data import CaptureState, ProgramData
from precompiled.graph import capture, devices
from precompiled.packages.describe.errors import Mismatch
from precompiled.packages.dynamo import dynamo_state
from precompiled.packages.dynamo.frame_entry import Graph
from precompiled.store.artifacts import Artifact
from precompiled.torch_internals.eager import stand_in
from precompiled.torch_internals.graph import graph_codec
from precompiled.torch_internals.graph.symbolic_sizes import guard_check
from precompiled.torch_internals.ranks import group_names
from precompiled.torch_internals.user_code import custom_ops, program_classes

log = logging.getLogger("precompiled.package")


def load(
    session: sessions.Session,
    graph: Graph,
    artifacts: list[Artifact],
    context: contextvars.Context,
    safe_point: SafePoint,
) -> tuple[Callable[..., object], GraphCalls]:
    """Load the callable of a graph from its artifacts.

    ``context``: the settings of torch that a load reads. ``safe_point``: the safe point of the graph's function. Raises
    StoreError if an artifact cannot be read, and Mismatch if the graph does not fit this process.
    """
    # Graphs without CPU kernels have no "threads", and graphs on the CPU have no "sdp_priority".
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
    if session.settings.mode == "eager" and not session.requires and measured_slower(session, graph.key) is not None:
        raise Mismatch("its compiled code is slower than eager code on this host, so Dynamo traces it")
    if safe_point.is_held():  # a checkpoint may repeat an eager run, but this graph would run compiled
        raise Mismatch("a checkpoint will recompute a different graph of the function, which ran eager")
    started = time.perf_counter()
    calls = graph_calls(GraphReport(id=uuid.uuid4().hex, name=graph.name, key=graph.key))
    captured = CaptureState(
        modes=graph.modes,
        device=graph.device,
        cudagraphs=graph.cudagraphs,
        size_inputs=graph.size_inputs,
        modules=graph.modules,
        classes=classes,
        groups=graph.groups,
        context=context,
    )
    whole = next((artifact for artifact in artifacts if not artifact.manifest.guards), None)
    if whole is not None:
        run = _loaded(session, whole, captured)
        function = counting(calls, prove(session, calls, whole, run, lambda: _eager_to_check(session, whole, captured)))
    else:
        function = _dispatched(session, artifacts, calls, captured, safe_point)
    calls.loaded("package", time.perf_counter() - started, (whole or artifacts[0]).manifest.compile_s)
    return function, calls


def _loaded(session: sessions.Session, artifact: Artifact, captured: CaptureState) -> Callable[..., object]:
    try:
        return load_for_graph(session.store, artifact, captured)
    except Bypass as error:
        raise Mismatch(f"an artifact does not fit this process: {error}") from error


def _dispatched(
    session: sessions.Session,
    artifacts: list[Artifact],
    calls: GraphCalls,
    captured: CaptureState,
    safe_point: SafePoint,
) -> Callable[..., object]:
    """Serve a graph whose artifacts are valid only for some sizes.

    A call with other sizes runs eager and submits a variant, like a call of a swapped graph. The stand-in is built now,
    because a later build could fail: an artifact may be evicted, or a source file edited.
    """
    kept = program_of(session, artifacts[0])
    if "meshes" in kept["inputs"]:
        raise Mismatch("its graph has meshes, so further sizes need a trace")
    program = capture.restore_program(kept, captured)
    about = kept.get(capture.ABOUT)
    submitter = Submitter(session, calls, lambda: json.dumps(about) if about else "")
    if session.settings.mode != "lookup":
        session.daemon.begin()  # started now, so that a later submit does not wait for the daemon

    def may_submit() -> bool:
        return session.settings.mode != "lookup" and session.daemon.problem() is None

    program = as_required(session, program)
    try:
        eager = _eager_here(kept, program)
    except Exception as error:  # an import failed, or a custom operator has changed
        raise Mismatch(f"its graph cannot run eager: {error}") from error
    dispatch = submitter.make_dispatch(program, eager, safe_point, may_submit)
    served = set()
    for artifact in artifacts:
        if artifact.manifest.guards in served:
            continue  # a tuned artifact precedes the untuned artifact with the same guards
        served.add(artifact.manifest.guards)
        run = _loaded(session, artifact, captured)
        proven = prove(session, calls, artifact, run, lambda: eager if can_check(program) else None)
        dispatch.serve_with(proven, guard_check(artifact.manifest.guards))
    return dispatch.call


def _eager_to_check(session: sessions.Session, artifact: Artifact, captured: CaptureState) -> stand_in.StandIn | None:
    """The stand-in of a graph whose artifact serves all sizes, or None if the graph cannot be checked."""
    try:
        kept = program_of(session, artifact)
        program = as_required(session, capture.restore_program(kept, captured))
        return _eager_here(kept, program) if can_check(program) else None
    except Exception as error:  # noqa: BLE001 - an artifact from a remote lacks its program, for example
        interruptions.pass_on(error)
        log.info("graph %s: not checked, because its program cannot run eager: %s", artifact.manifest.name, error)
        return None


def _eager_here(kept: ProgramData, program: CaptureState) -> stand_in.StandIn:
    return eager_of(devices.for_a_client(group_names.for_a_client(kept, program.groups), program.device))


def program_of(session: sessions.Session, artifact: Artifact) -> ProgramData:
    """The parsed graph from which an artifact was compiled. Raises StoreError if the artifact lacks
    ``program.json.gz``.
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
