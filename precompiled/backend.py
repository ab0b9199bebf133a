"""The Dynamo backend: captures a graph and looks it up; loads it on a hit; on a miss, submits it and runs it eager.

``backend="precompiled"`` gets here through torch's entry point, plain ``torch.compile`` through the hook
(torch_internals/client/inductor_route.py). If precompiled fails, ``in_process`` runs, which is plain torch.compile.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch.fx

from precompiled.client import session as sessions
from precompiled.client.dispatch import Compiled, Dispatch, counting
from precompiled.client.ledger import GraphCalls, GraphReport
from precompiled.client.load import load
from precompiled.client.process import PROCESS, RecorderProtocol
from precompiled.client.safe_points import SafePoint
from precompiled.client.session import Session
from precompiled.client.submit import Submitter, as_required
from precompiled.client.swap import Event, State, Swap
from precompiled.core import config
from precompiled.core.errors import COMPILE_ERROR, Bypass, NotServed, PrecompiledError, Refused, StoreError, code_of
from precompiled.graph import about, capture, key
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact
from precompiled.torch_internals.client import (
    compile_after_trace,
    cuda_graph_capture,
    graph_lowering,
    inductor_backend,
    retrace,
    standalone_compile,
)
from precompiled.torch_internals.eager import stand_in
from precompiled.torch_internals.graph import fixed_floats, trace_origin
from precompiled.torch_internals.graph.graph_names import graph_name
from precompiled.torch_internals.graph.symbolic_sizes import guard_check, install_guards, tell_nothing_new
from precompiled.torch_internals.inductor import cudagraph_parts, direct_inductor_calls, toolchain
from precompiled.version import switched_off

if TYPE_CHECKING:
    from precompiled.store.artifact_format import Failure

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
    """Serve the graph ``module`` to Dynamo: return compiled code on a hit, a callable that will be swapped on a miss.

    ``options``: Inductor's configuration on top of the process's own. Raises what ``in_process`` raises, or the
    exception that makes Dynamo retrace (fixed_floats.trace_again). With PRECOMPILED_REQUIRE=1, raises NotServed if it
    would otherwise leave the graph to ``in_process`` or to an eager run (docs/decisions/0045).
    """
    begun = _begun(module)
    if begun is None:
        return in_process()
    session, calls = begun
    kept = direct_inductor_calls.result_is_kept()
    if session.recorder is not None and not kept:
        # A watch's capture records what a run would look up, and runs no compiled code.
        in_process = functools.partial(_recorded, session.recorder, calls, module)
    elif session.stays_eager and not kept:
        in_process = functools.partial(stand_in.StandIn, module)

    captured: list[_Graph] = []

    def serve() -> Compiled:
        if kept:
            raise Bypass("torch writes down what is compiled here (aot_compile, for instance)", code="ahead-of-time")
        graph = graph_lowering.plain(module)
        with graph.modes():
            found = _Graph(session, graph, options, calls)
            captured.append(found)
            return found.serve() if session.recorder is None else found.record(session.recorder)

    def counted() -> Compiled:
        if kept:  # torch reads attributes of a result that it keeps, and a callable of this file lacks them
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
    """Serve a program that compiles ``module`` itself, ahead of its calls, and runs none of it eager (vLLM).

    ``prepared`` returns the graph and the options, or raises Bypass. A miss waits for its artifact, in each mode.
    ``written_down``: torch must be able to write the result down (standalone_compile.SavedCallable). Returns
    ``served(callable)``, or the result of ``in_process``. Raises as ``compile_or_swap`` does.
    """
    begun = _begun(module)
    if begun is None:
        return in_process()
    session, calls = begun

    def serve() -> object:
        if session.recorder is not None:
            raise Bypass("a watch's capture serves no graph that is compiled ahead of its calls", code="ahead-of-time")
        try:
            graph, options = prepared()
            plain = graph_lowering.plain(standalone_compile.check_output(graph))
            with plain.modes():
                return served(_Ahead(session, plain, options, calls, written_down).serve())
        except fixed_floats.FixedFloats as floats:
            raise Bypass("a float that Dynamo treats as symbolic is an input", code="symbolic-scalar") from floats

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
        calls = GraphCalls(GraphReport(id=uuid.uuid4().hex, name=graph_name(module)))
    except Exception as error:  # for example, a setting that cannot be used
        if config.required_by_environment():
            raise NotServed(graph_name(module), code_of(error, "internal-error"), str(error)) from error
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
        if not session.requires:  # with ``require`` the graph is refused, which is not a bypass
            session.ledger.count_reason("bypassed", reason.code)
        log.info("graph %s bypassed (%s): %s", calls.report.name, reason.code, reason)
        cause = reason
        code, message = reason.code, str(reason)
    except Refused as reason:
        cause, code, message = reason, reason.code, str(reason)
    except Exception as error:
        cause = error
        code = code_of(error, "internal-error")
        message = str(error) or type(error).__name__
        # Users get one warning per code and process. The log gets every case with its traceback.
        if not session.requires:
            session.ledger.count_reason("fallbacks", code)
            session.outcomes.warn_once(code, f"torch.compile compiles in process ({code}): {message}")
        log.info("graph %s is compiled in process (%s)", calls.report.name, code, exc_info=True)
    if session.requires:
        session.outcomes.not_served(calls, code, message)
        session.outcomes.note(calls.snapshot())
        raise NotServed(calls.report.name, code, message) from cause
    # Compile outside the exception handlers. The user sees torch's exception, which must not have the error above as
    # its context.
    calls.bypassed(code, message)
    started = time.perf_counter()
    try:
        compiled = in_process()
    except Exception:
        session.outcomes.note(calls.snapshot())  # otherwise `explain --run` would report that the run had no graph
        raise
    if calls.swap.state is State.FAILED:
        session.outcomes.note(calls.snapshot())
        return compiled
    calls.spent("compile in process", time.perf_counter() - started)
    session.outcomes.compiled_here(calls)
    return compiled


def _compiled_or_eager(
    session: Session, calls: GraphCalls, module: torch.fx.GraphModule, in_process: Callable[[], Compiled]
) -> Compiled:
    """Return the result of ``in_process``, or an eager callable if this host cannot build kernels.

    Plain torch.compile raises in that case, at a program's first call. In this process other graphs of the program
    may already run, from the store or eager, so an exception would stop a running service.
    """
    copy = compile_after_trace.copy_graph(module)
    try:
        return in_process()
    except Exception as error:
        if not (problem := toolchain.problem(error, "cpu")):
            raise
        log.info("graph %s stays eager", calls.report.name, exc_info=True)
    calls.left_eager()
    session.outcomes.stays_eager_without_compiler(calls.report, problem)
    return stand_in.StandIn(copy)


def went_around(module: object, ahead_of_time: bool) -> Callable[[], None]:
    """Report a compile for which the program calls Inductor directly. Returns a function to call after the compile."""
    session = sessions.current()
    if session.settings.mode == "off":
        return lambda: None
    reason = "ahead-of-time" if ahead_of_time else "direct-call"
    name = graph_name(module) if isinstance(module, torch.fx.GraphModule) else type(module).__name__
    calls = GraphCalls(GraphReport(id=uuid.uuid4().hex, name=name))
    calls.bypassed(reason, "Inductor was called by name, and not by torch.compile: what it gives is its own")
    session.ledger.add(calls)
    session.ledger.count_reason("bypassed", reason)
    return lambda: session.outcomes.compiled_here(calls)


def _recorded(recorder: RecorderProtocol, calls: GraphCalls, module: torch.fx.GraphModule) -> Compiled:
    report = calls.report
    recorder.graph(report, "bypassed", files=trace_origin.files(module))
    return stand_in.StandIn(module)


@dataclass
class _Graph:
    """One graph from Dynamo, until it has a callable."""

    session: Session
    graph: graph_lowering.Plain
    options: Mapping[str, Any]
    calls: GraphCalls
    may_run_eager: bool = field(default=False, init=False)  # set once the graph is captured

    @cached_property
    def safe_point(self) -> SafePoint:
        return self.session.safe_points.of(trace_origin.function())

    @property
    def submitter(self) -> Submitter:
        given = (
            None
            if self.graph.traced
            else compile_after_trace.Given(self.calls.report.name, self.graph.as_given, self.options)
        )
        return Submitter(
            self.session, self.calls, lambda: about.text(self.graph.module, self.options), given, retrace.being_traced()
        )

    def serve(self) -> Compiled:
        if self.session.settings.mode != "lookup":
            self.session.daemon.begin()
        program, artifacts, failure = self._look_up()
        report = self.calls.report

        for artifact in artifacts:
            if not self._serves(program, artifact):
                continue
            try:
                return self._hit(program, artifact)
            except (StoreError, FileNotFoundError) as error:
                # The artifact has been quarantined or evicted, so the graph is compiled again.
                self.session.ledger.count_reason("fallbacks", code_of(error, "artifact-evicted"))
                log.warning("graph %s: %s", report.name, error)

        self.session.ledger.count(misses=1)
        if (why := retrace.why_in_process()) is not None:
            raise why
        if failure is not None:
            raise self._known_to_fail(failure)
        if self.session.settings.mode == "lookup":
            self._keep(program)
            raise Bypass("there is no artifact for this graph, and the mode is lookup", code="lookup-only")
        problem = self.session.daemon.problem()
        if problem is not None:
            self._keep(program)
            raise problem
        return self._miss(program)

    def _keep(self, program: capture.SerializedGraph) -> None:
        """Keep the program of a miss that is not submitted, in the run record, so that `explain` can name the cause."""
        self.session.outcomes.keep(
            self.calls.report.key, lambda: program.to_bytes(about=about.text(self.graph.module, self.options))
        )

    def record(self, recorder: RecorderProtocol) -> Compiled:
        """Report to a watch's recorder what ``serve`` would find, and submit what is missing. The graph runs eager."""
        program, artifacts, failure = self._look_up()
        report = self.calls.report
        state = "reused" if any([self._serves(program, artifact) for artifact in artifacts]) else "compiling"
        if failure is not None:
            report.reason, report.message, state = failure.reason, failure.message, "failed"
        slots = [artifact.slot for artifact in artifacts]
        files = trace_origin.files(self.graph.as_given)
        # Report the graph before the submit, so that the watcher can cancel the submit when it ends this process.
        recorder.graph(report, state, files=files, slots=slots, dynamic=bool(program.hints))
        if state == "compiling":
            self.submitter.submit(program, program.hints, report.id, recorder.on_reply)
        return self._named(counting(self.calls, self.graph.eager()), program)

    def _look_up(self) -> tuple[capture.SerializedGraph, list[Artifact], Failure | None]:
        started = time.perf_counter()
        program = as_required(self.session, capture.capture(self.graph.module, self.options, self.graph.held))
        self.may_run_eager = not program.no_stand_in and program.device == "cpu"
        report = self.calls.report
        report.key = key.key(program.sections)
        awaited = PROCESS.ahead is not None and PROCESS.ahead.under_way
        artifacts = self.session.store.lookup(report.key)
        if not artifacts and awaited and self.session.came_ahead():
            artifacts = self.session.store.lookup(report.key)
        failure = None if artifacts else self.session.store.failure(report.key)
        report.lookup_s = time.perf_counter() - started
        self.calls.spent("lookup", report.lookup_s)
        return program, artifacts, failure

    def _serves(self, program: capture.SerializedGraph, artifact: Artifact) -> bool:
        """Whether a variant's guards hold for this graph. If they do, Dynamo guards on them from now on."""
        guards = artifact.manifest.guards
        if not guard_check(guards)(program.sizes(program.hints)):
            return False
        nodes = [node for node in self.graph.module.graph.nodes if node.op == "placeholder"]
        return install_guards(guards, [nodes[position].meta["example_value"] for position in program.size_inputs])

    def _hit(self, program: capture.SerializedGraph, artifact: Artifact) -> Compiled:
        started = time.perf_counter()
        function = self._load(program, artifact)
        if self.session.stays_eager and not program.no_stand_in:
            function = self.graph.eager()
        saved_s = self.calls.loaded("hit", time.perf_counter() - started, artifact.manifest.compile_s)
        self.session.ledger.count(hits=1, saved_s=saved_s)
        self.session.loaded_from(artifact)
        if self.safe_point.is_held() and not program.no_stand_in:
            # A checkpoint may repeat, with this graph, a run that another graph of the function made eager.
            dispatch = self._dispatch(program)
            dispatch.serve_with(function)
            return self._named(dispatch.call, program)
        return self._named(counting(self.calls, function), program)

    def _load(self, program: capture.SerializedGraph, artifact: Artifact) -> Compiled:
        return load(
            self.session.store,
            artifact,
            program.modes,
            cudagraphs=program.cudagraphs,
            classes=program.classes,
            frozen=program.frozen,
            device=program.device,
            groups=program.groups,
            context=program.context,
        )

    def _known_to_fail(self, failure: Failure) -> PrecompiledError:
        """The exception for a failure record. After a compile error the user must see what torch does in this process
        (docs/decisions/0018).
        """
        if failure.reason != COMPILE_ERROR:
            return Bypass(failure.message, code=failure.reason)
        if not self.session.requires:
            self.session.ledger.count_reason("fallbacks", failure.reason)
        return Refused(failure.message, code=failure.reason)

    def _dispatch(self, program: capture.SerializedGraph) -> Dispatch:
        if program.cudagraphs:
            cudagraph_parts.called_here()
        dispatch = Dispatch(
            self.calls,
            self.graph.eager(),
            program.size_inputs,
            lambda sizes: self.submitter.request_variant(program, dispatch, sizes),
            cuda_graph_capture.is_capturing if program.device != "cpu" else None,
            self.safe_point,
            waits=bool(program.no_stand_in),
            stays_eager=self.session.stays_eager and not program.no_stand_in,
            without_a_job=lambda sizes: self.submitter.without_a_job(program, dispatch, sizes),
            raised=functools.partial(self.session.outcomes.stand_in_raised, self.calls),
        )
        return dispatch

    def _miss(self, program: capture.SerializedGraph) -> Compiled:
        if program.weights is not None and program.weights.nbytes > self.session.settings.max_graph_bytes:
            size = f"{program.weights.nbytes >> 20} MiB"
            raise Bypass(f"the weights to be frozen are {size}, over max_graph_bytes", code="freezing")
        dispatch = self._dispatch(program)
        waits = bool(program.no_stand_in)
        self.calls.swap.on(Event.MISS)
        started = time.perf_counter()
        awaited = self.submitter.submit_and_await(
            program, dispatch, program.hints, self.calls.swap, self.calls.report.id
        )
        self.calls.spent("submit", time.perf_counter() - started)
        if waits or self.session.settings.mode == "wait":
            self.session.pending.stand_still(awaited)
            if self.calls.swap.state is State.BYPASSED or (self.session.requires and self.calls.report.reason):
                # Raised while Dynamo compiles the frame, so that Dynamo raises torch's errors as its own.
                raise Refused(self.calls.report.message, code=self.calls.report.reason)
        if waits:
            self.calls.report.message = f"waited for its artifact: {program.no_stand_in}"
            if self.calls.swap.state is not State.COMPILED:
                self.session.pending.drop(awaited)
                if self.session.requires:
                    said = f"no artifact was there within {self.session.settings.wait_s:g} s, and {program.no_stand_in}"
                    raise Bypass(said, code="not-in-time")
                raise Bypass(f"there is no artifact, and {program.no_stand_in}", code="no-stand-in")
            # Continue as after a hit: Dynamo guards on the artifact's sizes. For other sizes it retraces, and that
            # graph waits for its artifact as well.
            for artifact in self.session.store.lookup(self.calls.report.key):
                if self._serves(program, artifact):
                    break
        return self._named(dispatch.call, program)

    def _named(self, function: Compiled, program: capture.SerializedGraph) -> Compiled:
        """Adapt ``function`` to the arguments that Dynamo passes. If packages are recorded, mark it with its graph."""
        function = self.graph.taking_all(function)
        if PROCESS.packages is not None and self.graph.flatten is None:
            PROCESS.packages.name_graph(function, self.calls.report, program, self.graph.held)
        return function


_AHEAD = "the program compiles it ahead of its calls, and runs none of them eager"


@dataclass
class _Ahead(_Graph):
    """A graph that is compiled ahead of its calls, for all of its sizes at once, since no call can wait for a
    variant.

    ``written_down``: the result is torch's own artifact, which the program may keep.
    """

    written_down: bool

    def serve(self) -> Compiled:
        if self.written_down and (self.graph.flatten is not None or self.graph.held):
            raise Bypass("torch writes down what is compiled here, and the graph holds tensors", code="ahead-of-time")
        return super().serve()

    def _kept(self, function: Compiled, program: capture.SerializedGraph, artifact: Artifact) -> Compiled:
        if not self.written_down:
            return function
        bundle = self.session.store.read_files(artifact)[fmt.BUNDLE]
        return standalone_compile.SavedCallable(function, bundle, program.classes, program.device, program.groups)

    def _look_up(self) -> tuple[capture.SerializedGraph, list[Artifact], Failure | None]:
        program, artifacts, failure = super()._look_up()
        return replace(program, no_stand_in=_AHEAD), artifacts, failure

    def _serves(self, program: capture.SerializedGraph, artifact: Artifact) -> bool:
        # Calls check no guards, so the artifact is usable only if the compile has added no guards to those of the
        # capture.
        return tell_nothing_new(artifact.manifest.guards, json.loads(program.sections["inputs"]))

    def _hit(self, program: capture.SerializedGraph, artifact: Artifact) -> Compiled:
        return self._kept(super()._hit(program, artifact), program, artifact)

    def _miss(self, program: capture.SerializedGraph) -> Compiled:
        super()._miss(program)  # waits until the artifact is loaded
        for artifact in self.session.store.lookup(self.calls.report.key):
            if self._serves(program, artifact):
                function = self._named(counting(self.calls, self._load(program, artifact)), program)
                return self._kept(function, program, artifact)
        self.calls.swap = Swap()  # the loaded artifact is not used
        raise Bypass("what is compiled ahead of its calls holds for some of their sizes only", code="size-guards")

    def _dispatch(self, program: capture.SerializedGraph) -> Dispatch:
        return Dispatch(self.calls, self.graph.eager(), program.size_inputs, lambda sizes: None, waits=True)

    def _named(self, function: Compiled, program: capture.SerializedGraph) -> Compiled:
        return self.graph.taking_all(function)
