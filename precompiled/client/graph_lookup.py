"""Looks up one graph from Dynamo. On a hit, loads the artifact. On a miss, submits the graph, which runs eager."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from precompiled.client import pieces
from precompiled.client.dispatch import Compiled, Dispatch, counting
from precompiled.client.ledger import GraphCalls
from precompiled.client.left_to_eager import may_stay_eager, measured_slower
from precompiled.client.load import load_for_graph
from precompiled.client.process import PROCESS, RecorderProtocol
from precompiled.client.proof import can_check, prove
from precompiled.client.safe_points import SafePoint
from precompiled.client.session import Session
from precompiled.client.submit import Submitter, as_required
from precompiled.client.swap import Event, State, Swap
from precompiled.core import interruptions
from precompiled.core.errors import (
    COMPILE_ERROR,
    SLOWER_THAN_EAGER,
    Bypass,
    PrecompiledError,
    Refused,
    StoreError,
    code_of,
)
from precompiled.core.reasons import Outcome, outcome
from precompiled.core.words import human_seconds
from precompiled.graph import about, capture, key
from precompiled.store import artifact_format as fmt
from precompiled.store.artifacts import Artifact
from precompiled.torch_internals.client import (
    compile_after_trace,
    graph_lowering,
    retrace,
    standalone_compile,
)
from precompiled.torch_internals.graph import trace_origin
from precompiled.torch_internals.graph.symbolic_sizes import guard_check, install_guards, tell_nothing_new
from precompiled.torch_internals.inductor import cudagraph_parts, toolchain

if TYPE_CHECKING:
    from precompiled.store.artifact_format import Failure

log = logging.getLogger("precompiled.backend")


@dataclass
class GraphLookup:
    """The lookup of one graph that Dynamo captured. Its result is a callable for Dynamo."""

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
        if failure is not None and failure.reason == SLOWER_THAN_EAGER:
            return self._stay_eager(program, failure)

        for artifact in artifacts:
            if not self._serves(program, artifact):
                continue
            try:
                return self._hit(program, artifact)
            except (StoreError, FileNotFoundError) as error:
                interruptions.pass_on(error)
                # The store has quarantined or evicted the artifact, so the graph is compiled again.
                self.session.ledger.count_reason("fallbacks", code_of(error, "artifact-evicted"))
                log.warning("graph %s: %s", report.name, error)

        self.session.ledger.count(misses=1)
        if (why := retrace.why_in_process()) is not None:
            raise why
        if failure is not None:
            if outcome(failure.reason, runs=False) is Outcome.EAGER and not program.no_stand_in:
                self.session.outcomes.warn_stays_eager(report.name, failure.reason, failure.message)
                return self._stay_eager(program, failure)
            raise self._known_to_fail(failure)
        if self.session.settings.mode == "lookup":
            self._keep(program)
            raise Bypass("the store has no artifact for this graph, and the mode is lookup", code="lookup-only")
        problem = self.session.daemon.problem()
        if problem is not None:
            self._keep(program)
            raise problem
        return self._miss(program)

    def _keep(self, program: capture.SerializedGraph) -> None:
        """Add the captured graph to the run record, so that `explain` can name the cause of the miss. A submitted graph
        does not need this, because the store gets it.
        """
        self.session.outcomes.keep(
            self.calls.report.key, lambda: program.to_bytes(about=about.text(self.graph.module, self.options))
        )

    def record(self, recorder: RecorderProtocol) -> Compiled:
        """Report to watch mode's recorder what ``serve`` would find. On a miss, submit the graph. The graph runs
        eager.
        """
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
        failure = measured_slower(self.session, report.key) if may_stay_eager(self.session, program) else None
        if failure is None and not artifacts:
            failure = self.session.store.failure(report.key)
        report.lookup_s = time.perf_counter() - started
        self.calls.spent("lookup", report.lookup_s)
        return program, artifacts, failure

    def _serves(self, program: capture.SerializedGraph, artifact: Artifact) -> bool:
        """Add a variant's guards to Dynamo's guards if they hold for this graph. Returns whether they hold."""
        guards = artifact.manifest.guards
        if not guard_check(guards)(program.sizes(program.hints)):
            return False
        nodes = [node for node in self.graph.module.graph.nodes if node.op == "placeholder"]
        return install_guards(guards, [nodes[position].meta["example_value"] for position in program.size_inputs])

    def _hit(self, program: capture.SerializedGraph, artifact: Artifact) -> Compiled:
        started = time.perf_counter()
        function = load_for_graph(self.session.store, artifact, program)
        if self.session.stays_eager and not program.no_stand_in:
            function = self.graph.eager()
        eager = self.graph.eager
        function = prove(self.session, self.calls, artifact, function, lambda: eager() if can_check(program) else None)
        self.calls.loaded("hit", time.perf_counter() - started, artifact.manifest.compile_s)
        self.session.ledger.count(hits=1, saved_s=self.calls.report.saved_s)
        self.session.loaded_from(artifact)
        if self.safe_point.is_held() and not program.no_stand_in:
            # If another graph of this function ran eager in a checkpoint, the recompute may call this graph instead.
            # Then this graph must run eager too, so the dispatch decides for each call.
            dispatch = self._dispatch(program)
            dispatch.serve_with(function)
            return self._named(dispatch.call, program)
        return self._named(counting(self.calls, function), program)

    def _known_to_fail(self, failure: Failure) -> PrecompiledError:
        """The exception for a failure record. After a compile error, torch compiles in this process, so that the user
        sees torch's own error (docs/decisions/0018).
        """
        age = human_seconds(max(0.0, time.time() - failure.created))
        retry = f"`precompiled daemon retry {failure.key[:12]}`"
        message = f"a compile {age} ago failed ({retry} compiles again): {failure.message}"
        if failure.reason != COMPILE_ERROR:
            return Bypass(message, code=failure.reason)
        if not self.session.requires:
            self.session.ledger.count_reason("fallbacks", failure.reason)
        return Refused(message, code=failure.reason)

    def _stay_eager(self, program: capture.SerializedGraph, failure: Failure) -> Compiled:
        """Serve the graph by eager code, because an earlier process found compiled code slower, or wrong."""
        self.session.outcomes.went_back(self.calls, failure.reason, failure.message)
        return self.graph.taking_all(counting(self.calls, self.graph.eager()))

    def _dispatch(self, program: capture.SerializedGraph) -> Dispatch:
        if program.cudagraphs:
            cudagraph_parts.called_here()
        return self.submitter.make_dispatch(program, self.graph.eager(), self.safe_point)

    def _miss(self, program: capture.SerializedGraph) -> Compiled:
        if program.weights is not None and program.weights.nbytes > self.session.settings.max_graph_bytes:
            size = f"{program.weights.nbytes >> 20} MiB"
            raise Bypass(f"the weights to be frozen are {size}, over max_graph_bytes", code="freezing")
        waits = bool(program.no_stand_in)
        if program.device == "cpu" and not waits and (problem := toolchain.missing_compiler()):
            self.session.outcomes.warn_missing_compiler(problem)
        dispatch = self._dispatch(program)
        self.calls.swap.on(Event.MISS)
        quick = pieces.begin(self.session, self.graph, self.options, self.calls, dispatch, program)
        started = time.perf_counter()
        # The workers compile the pieces first.
        after = quick.settled if quick is not None else None
        awaited = self.submitter.submit_and_await(
            program, dispatch, program.hints, self.calls.swap, self.calls.report.id, after
        )
        dispatch.pieces_lost = lambda: self.session.pending.end_idle_priority(awaited)
        self.calls.spent("submit", time.perf_counter() - started)
        must_wait = waits or self.session.settings.mode == "wait"
        if quick is not None and must_wait:
            self.session.pending.stand_still(awaited, until=quick.settled)
            must_wait = quick.settled.is_set()  # if false, the first wait has used up the time
        if must_wait and not dispatch.is_served():
            self.session.pending.stand_still(awaited)
            if self.calls.swap.state is State.BYPASSED or (self.session.requires and self.calls.report.reason):
                # After this exception, torch compiles the graph in process. Dynamo is still compiling the frame, so it
                # raises torch's errors as without precompiled.
                raise Refused(self.calls.report.message, code=self.calls.report.reason)
        if waits:
            self.calls.report.message = f"waited for its artifact: {program.no_stand_in}"
            if self.calls.swap.state is not State.COMPILED:
                self.session.pending.drop(awaited)
                if self.session.requires:
                    said = f"no artifact was ready within {self.session.settings.wait_s:g} s, and {program.no_stand_in}"
                    raise Bypass(said, code="not-in-time")
                raise Bypass(f"no artifact was ready in time, and {program.no_stand_in}", code="no-stand-in")
            # As after a hit, Dynamo guards on the artifact's sizes. For other sizes Dynamo retraces, and the new graph
            # waits for its own artifact.
            for artifact in self.session.store.lookup(self.calls.report.key):
                if self._serves(program, artifact):
                    break
        return self._named(dispatch.call, program)

    def _named(self, function: Compiled, program: capture.SerializedGraph) -> Compiled:
        """Adapt ``function`` to the arguments that Dynamo passes. If packages are on, mark the result with its
        graph.
        """
        function = self.graph.taking_all(function)
        if PROCESS.packages is not None and self.graph.flatten is None:
            PROCESS.packages.name_graph(function, self.calls.report, program, self.graph.held)
        return function


_AHEAD = "the program compiles the graph before its calls, and runs no call eager"


@dataclass
class LookupAhead(GraphLookup):
    """The lookup of a graph that the program compiles ahead of its calls. No call can wait for a variant, so one
    artifact must serve all sizes.

    ``written_down``: whether the result is torch's own artifact, which the program may save.
    """

    written_down: bool

    def serve(self) -> Compiled:
        if self.written_down and (self.graph.flatten is not None or self.graph.held):
            raise Bypass(
                "torch writes the compiled graph to a file, and the graph contains tensors", code="ahead-of-time"
            )
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
        # Calls check no guards, so the artifact must not have more guards than the capture.
        return tell_nothing_new(artifact.manifest.guards, json.loads(program.sections["inputs"]))

    def _hit(self, program: capture.SerializedGraph, artifact: Artifact) -> Compiled:
        return self._kept(super()._hit(program, artifact), program, artifact)

    def _miss(self, program: capture.SerializedGraph) -> Compiled:
        super()._miss(program)  # waits until the artifact is loaded
        for artifact in self.session.store.lookup(self.calls.report.key):
            if self._serves(program, artifact):
                function = self._named(
                    counting(self.calls, load_for_graph(self.session.store, artifact, program)), program
                )
                return self._kept(function, program, artifact)
        self.calls.swap = Swap()  # discard the artifact that ``super()._miss`` loaded
        raise Bypass("the artifact is not valid for all sizes of this ahead-of-time compile", code="size-guards")

    def _dispatch(self, program: capture.SerializedGraph) -> Dispatch:
        return Dispatch(self.calls, self.graph.eager(), program.size_inputs, lambda sizes: None, waits=True)

    def _named(self, function: Compiled, program: capture.SerializedGraph) -> Compiled:
        return self.graph.taking_all(function)
