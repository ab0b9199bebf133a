"""The Dynamo backend: serves each graph (client/graph_lookup.py), or compiles it in process as torch would.

Torch's entry point calls this file for ``backend="precompiled"``, and the hook calls it for plain ``torch.compile``
(torch_internals/client/inductor_route.py). If precompiled fails, ``in_process`` compiles as plain torch.compile does.
"""

from __future__ import annotations

import functools
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.fx

from precompiled.client import session as sessions
from precompiled.client.dispatch import Compiled, counting
from precompiled.client.graph_lookup import GraphLookup, LookupAhead
from precompiled.client.ledger import GraphCalls, GraphReport, graph_calls
from precompiled.client.process import RecorderProtocol
from precompiled.client.session import Session
from precompiled.client.swap import State
from precompiled.core import bypassing, config, interruptions
from precompiled.core.errors import Bypass, NotServed, Refused, code_of
from precompiled.core.spans import IN_PROCESS
from precompiled.torch_internals.client import (
    compile_after_trace,
    dynamo_errors,
    graph_lowering,
    inductor_backend,
    standalone_compile,
)
from precompiled.torch_internals.eager import stand_in
from precompiled.torch_internals.graph import fixed_floats, trace_origin
from precompiled.torch_internals.graph.graph_names import graph_name
from precompiled.torch_internals.inductor import direct_inductor_calls, toolchain
from precompiled.version import switched_off

log = logging.getLogger("precompiled.backend")


def precompiled(
    module: torch.fx.GraphModule, example_inputs: Sequence[object], *, mode: str | None = None, options: Any = None
) -> Compiled:
    """The backend of ``torch.compile(..., backend="precompiled")``, with torch.compile's own ``mode=`` and
    ``options=``.
    """
    settled = inductor_backend.options_of(mode, options)
    return compile_or_swap(
        module, settled, lambda: inductor_backend.compile_in_process(module, example_inputs, settled)
    )


def compile_or_swap(
    module: torch.fx.GraphModule, options: Mapping[str, Any], in_process: Callable[[], Compiled]
) -> Compiled:
    """Serve the graph ``module`` to Dynamo: return compiled code on a hit. On a miss, return a callable that is swapped
    later.

    ``options``: settings of Inductor that override the process's own. Raises what ``in_process`` raises, or the
    exception that makes Dynamo retrace (fixed_floats.trace_again). With PRECOMPILED_REQUIRE=1, raises NotServed instead
    of calling ``in_process`` or leaving the graph eager (docs/decisions/0045).
    """
    if bypassing.is_active():
        return leave_to_torch(module, in_process)
    begun = _begun(module)
    if begun is None:
        return in_process()
    session, calls = begun
    kept = direct_inductor_calls.result_is_kept()
    if session.recorder is not None and not kept:
        # A run that captures graphs for watch mode records what a normal run would look up, and runs no compiled code.
        in_process = functools.partial(_recorded, session.recorder, calls, module)
    elif session.stays_eager and not kept:
        in_process = functools.partial(stand_in.StandIn, module)

    captured: list[GraphLookup] = []

    def serve() -> Compiled:
        if kept:
            raise Bypass("torch writes the compiled graph to a file (aot_compile, for instance)", code="ahead-of-time")
        graph = graph_lowering.plain(module)
        with graph.modes():
            found = GraphLookup(session, graph, options, calls)
            captured.append(found)
            return found.serve() if session.recorder is None else found.record(session.recorder)

    def counted() -> Compiled:
        if kept:  # torch will read attributes of the result, and a callable of this file lacks these attributes
            return in_process()
        if captured and captured[0].may_run_eager:
            return counting(calls, _compiled_or_eager(session, calls, module, in_process))
        return counting(calls, in_process())

    compiled: Compiled = _served(session, calls, serve, counted)
    return compiled


def compile_ahead(
    module: torch.fx.GraphModule,
    prepared: Callable[[], tuple[torch.fx.GraphModule, Mapping[str, object]]],
    in_process: Callable[[], object],
    served: Callable[[Compiled], object],
    *,
    written_down: bool,
) -> Any:
    """Serve a program that compiles ``module`` itself, ahead of its calls, and never runs it eager (vLLM).

    ``prepared`` returns the graph and the options, or raises Bypass. After a miss, calls wait for the artifact in every
    mode. ``written_down``: torch must be able to serialize the result (standalone_compile.SavedCallable). Returns
    ``served(callable)``, or the result of ``in_process``. Raises as ``compile_or_swap`` does.
    """
    if bypassing.is_active():
        return leave_to_torch(module, in_process)
    begun = _begun(module)
    if begun is None:
        return in_process()
    session, calls = begun

    def serve() -> object:
        if session.recorder is not None:
            raise Bypass("a watch cannot serve a graph that is compiled before its calls", code="ahead-of-time")
        try:
            graph, options = prepared()
            plain = graph_lowering.plain(standalone_compile.check_output(graph))
            with plain.modes():
                return served(LookupAhead(session, plain, options, calls, written_down).serve())
        except fixed_floats.FixedFloats as floats:
            raise Bypass("an input is a float that Dynamo treats as symbolic", code="symbolic-scalar") from floats

    def reported() -> object:
        with direct_inductor_calls.ours():
            return in_process()

    return _served(session, calls, serve, reported)


def _begun(module: torch.fx.GraphModule) -> tuple[Session, GraphCalls] | None:
    """Return the session and a new graph in it, or None if precompiled is off."""
    if switched_off(os.environ):
        return None
    try:
        session = sessions.current()
        calls = graph_calls(GraphReport(id=uuid.uuid4().hex, name=graph_name(module)))
    except Exception as error:  # for example, a setting that cannot be used
        interruptions.pass_on(error)
        if config.required_by_environment():
            refused = NotServed(graph_name(module), code_of(error, "internal-error"), str(error))
            raise dynamo_errors.unwrapped(refused, error) from error
        log.warning("torch.compile compiles in process: %s", error)
        return None
    if session.settings.mode == "off":
        return None
    session.ledger.add(calls)
    return session, calls


def _served(session: Session, calls: GraphCalls, serve: Callable[[], object], in_process: Callable[[], object]) -> Any:
    """Return the result of ``serve``, or of ``in_process`` if the graph is not served. Logs and counts the reason."""
    cause: Exception
    try:
        served = serve()
        session.outcomes.note(calls.snapshot())
        return served
    except fixed_floats.FixedFloats as floats:
        session.ledger.forget(calls)
        fixed_floats.trace_again(floats)
    except Bypass as reason:
        interruptions.pass_on(reason)
        if not session.requires:  # with ``require``, the call raises, and is not counted as a bypass
            session.ledger.count_reason("bypassed", reason.code)
        log.info("graph %s bypassed (%s): %s", calls.report.name, reason.code, reason)
        cause = reason
        code, message = reason.code, str(reason)
    except Refused as reason:
        interruptions.pass_on(reason)
        cause, code, message = reason, reason.code, str(reason)
    except Exception as error:
        interruptions.pass_on(error)
        cause = error
        code = code_of(error, "internal-error")
        message = str(error) or type(error).__name__
        # Users get one warning per reason code and process. The log gets every case with its traceback.
        if not session.requires:
            session.ledger.count_reason("fallbacks", code)
            session.outcomes.warn_once(code, f"torch.compile compiles in process ({code}): {message}")
        log.info("graph %s is compiled in process (%s)", calls.report.name, code, exc_info=True)
    if session.requires:
        session.outcomes.not_served(calls, code, message)
        session.outcomes.note(calls.snapshot())
        raise dynamo_errors.unwrapped(NotServed(calls.report.name, code, message), cause) from cause
    # Compile outside the exception handlers, so that torch's exception does not have the error above as its context.
    calls.bypassed(code, message)
    try:
        with calls.timed(IN_PROCESS):
            compiled = in_process()
    except Exception:
        session.outcomes.note(calls.snapshot())  # otherwise `explain --run` would report that the run had no graph
        raise
    if calls.swap.state is State.FAILED:
        session.outcomes.note(calls.snapshot())
        return compiled
    session.outcomes.compiled_here(calls)
    return compiled


def _compiled_or_eager(
    session: Session, calls: GraphCalls, module: torch.fx.GraphModule, in_process: Callable[[], Compiled]
) -> Compiled:
    """Return the result of ``in_process``, or an eager callable if this host cannot build kernels.

    On such a host, plain torch.compile raises at a program's first call. With precompiled, other graphs of the program
    may already run, from the store or eager, so an exception would stop a running service.
    """
    copy = compile_after_trace.copy_graph(module)
    try:
        return in_process()
    except Exception as error:
        interruptions.pass_on(error)
        if not (problem := toolchain.problem(error, "cpu")):
            raise
        log.info("graph %s stays eager", calls.report.name, exc_info=True)
    calls.left_eager()
    session.outcomes.stays_eager_without_compiler(calls.report, problem)
    return stand_in.StandIn(copy)


def leave_to_torch(module: torch.fx.GraphModule, in_process: Callable[[], Any]) -> Any:
    """Compile a graph in process, because the program switched precompiled off for it. Returns torch's own result."""
    begun = _begun(module)
    if begun is None:
        return in_process()
    session, calls = begun
    session.ledger.count_reason("bypassed", "switched-off")
    calls.bypassed("switched-off", "the program bypasses precompiled for this graph")
    with direct_inductor_calls.ours(), calls.timed(IN_PROCESS):
        compiled = in_process()
    session.outcomes.compiled_here(calls)
    return compiled


def went_around(module: object, ahead_of_time: bool) -> Callable[[], None]:
    """Report a compile that the program starts by calling Inductor directly. Call the result after the compile."""
    session = sessions.current()
    if session.settings.mode == "off":
        return lambda: None
    reason = "ahead-of-time" if ahead_of_time else "direct-call"
    name = graph_name(module) if isinstance(module, torch.fx.GraphModule) else type(module).__name__
    calls = graph_calls(GraphReport(id=uuid.uuid4().hex, name=name))
    calls.bypassed(reason, "the program called Inductor directly, so precompiled did not see this compile")
    session.ledger.add(calls)
    session.ledger.count_reason("bypassed", reason)
    started = time.perf_counter()

    def done() -> None:
        calls.spent(IN_PROCESS, time.perf_counter() - started)
        session.outcomes.compiled_here(calls)

    return done


def _recorded(recorder: RecorderProtocol, calls: GraphCalls, module: torch.fx.GraphModule) -> Compiled:
    report = calls.report
    recorder.graph(report, "bypassed", files=trace_origin.files(module))
    return stand_in.StandIn(module)
