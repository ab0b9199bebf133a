"""Submits a graph or its variants. If the daemon does not compile a graph, this file compiles it in process."""

from __future__ import annotations

import functools
import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from precompiled import parts
from precompiled.client.awaited import Awaited, NotNow, PieceView
from precompiled.client.dispatch import Compiled, Dispatch
from precompiled.client.ledger import GraphCalls
from precompiled.client.left_to_eager import leave_to_eager, may_stay_eager
from precompiled.client.safe_points import SafePoint
from precompiled.client.session import Session
from precompiled.client.speed_trial import Lost
from precompiled.client.swap import Event, Swap
from precompiled.core import interruptions
from precompiled.core.errors import SLOWER_THAN_EAGER, Bypass, CompileFailed, NotServed
from precompiled.graph import capture, devices, environment
from precompiled.torch_internals.client import compile_after_trace, cuda_graph_capture, retrace
from precompiled.torch_internals.eager.stand_in import StandIn
from precompiled.torch_internals.inductor import toolchain
from precompiled.torch_internals.ranks import group_names

if TYPE_CHECKING:
    from precompiled.client.connection import OnReply

log = logging.getLogger("precompiled.backend")


# If a worker failed with one of these codes, Dynamo must retrace the graph or add guards.
_DYNAMOS = frozenset({"fixed-float", "aotautograd-guards", "size-guards"})

# The text of ``no_stand_in`` if only ``require`` forbids that the graph runs eager.
REQUIRED = "PRECOMPILED_REQUIRE=1 forbids eager runs"


def as_required(session: Session, program: capture.SerializedGraph) -> capture.SerializedGraph:
    """Return the program. If ``require`` is set, mark it as one that must not run eager."""
    if session.requires and not program.no_stand_in:
        return replace(program, no_stand_in=REQUIRED)
    return program


@dataclass(frozen=True)
class Submitter:
    """Submits one graph.

    - ``about``: returns the graph's source lines, for display (torch_internals/graph/source_lines.py)
    - ``given``: Dynamo's graph, if it can be compiled in that form after the trace
    - ``traced``: the graph's frame, if Dynamo can retrace it
    - ``piece``: set if the graph is a piece of another graph (pieces.py)
    """

    session: Session
    calls: GraphCalls
    about: Callable[[], str]
    given: compile_after_trace.Given | None = None
    traced: retrace.TracedFrame | None = None
    piece: PieceView | None = None

    def make_dispatch(
        self,
        program: capture.SerializedGraph,
        eager: StandIn,
        safe_point: SafePoint,
        may_submit: Callable[[], bool] = lambda: True,
    ) -> Dispatch:
        """Make the callable of a graph. A call with sizes that no variant serves submits a variant if ``may_submit()``
        is true.
        """
        dispatch = Dispatch(
            self.calls,
            eager,
            program.size_inputs,
            lambda sizes: self.request_variant(program, dispatch, sizes) if may_submit() else None,
            cuda_graph_capture.is_capturing if program.device != "cpu" else None,
            safe_point,
            waits=bool(program.no_stand_in),
            stays_eager=self.session.stays_eager and not program.no_stand_in,
            without_a_job=lambda sizes: self.without_a_job(program, dispatch, sizes),
            raised=functools.partial(self.session.outcomes.stand_in_raised, self.calls),
            lost=self._stay_eager if may_stay_eager(self.session, program) else None,
        )
        return dispatch

    def _stay_eager(self, lost: Lost) -> None:
        """Record that eager code serves the graph, because it is faster than the code of its artifact."""
        message = f"compiled code is slower than eager code on this host: {lost}"
        if self.calls.report.source == "swap":
            leave_to_eager(self.session, self.calls, SLOWER_THAN_EAGER, message)
        else:
            self.session.outcomes.went_back(self.calls, SLOWER_THAN_EAGER, message)

    def request_variant(self, program: capture.SerializedGraph, dispatch: Dispatch, sizes: list[int]) -> None:
        """Submit a variant for a call whose sizes no variant serves. The call itself runs eager.

        Raises NotServed if ``require`` is set and the submit fails.
        """
        try:
            hints = program.hints_for(sizes)
            if hints is not None:
                swap = Swap()
                swap.on(Event.MISS)
                self.submit_and_await(program, dispatch, hints, swap, uuid.uuid4().hex)
        except Exception as error:  # the user's call must not raise, so it runs eager
            interruptions.pass_on(error)
            self.session.ledger.count_reason("fallbacks", "submit-failed")
            if self.session.requires:
                raise NotServed(self.calls.report.name, "submit-failed", str(error) or type(error).__name__) from error
            log.warning("no variant for the sizes %s: %s", sizes, error)

    def without_a_job(self, program: capture.SerializedGraph, dispatch: Dispatch, sizes: list[int]) -> None:
        """Prepare a compile in process for a call that must not run eager, but has no submit for its sizes.

        Raises NotServed if ``require`` is set.
        """
        self.session.refuse_sizes(self.calls)
        hints = program.hints_for(sizes)
        if hints is not None:
            swap = Swap()
            swap.on(Event.MISS)
            self._awaited(program, dispatch, hints, swap, uuid.uuid4().hex).done.set()

    def submit_and_await(
        self,
        program: capture.SerializedGraph,
        dispatch: Dispatch,
        hints: list[int],
        swap: Swap,
        id: str,
        after: threading.Event | None = None,
    ) -> Awaited:
        """Submit a graph, and await its artifact for ``dispatch``. Raises if the submit fails.

        ``after``: if given, the graph is submitted once this event is set.
        """
        awaited = self._awaited(program, dispatch, hints, swap, id)
        awaited.after = after
        # Add the graph before the submit, so that the daemon's reply finds it.
        self.session.pending.add(awaited)
        if after is not None:
            return awaited
        try:
            awaited.submit(awaited)
        except BaseException:
            self.session.pending.abandon(awaited)
            raise
        return awaited

    def _awaited(
        self, program: capture.SerializedGraph, dispatch: Dispatch, hints: list[int], swap: Swap, id: str
    ) -> Awaited:
        """Make the item for which a call of ``dispatch`` waits if the call must not run eager."""
        text = self.about()  # in this thread, whose stack has the program's calls. Another thread may submit the graph.
        awaited = Awaited(
            calls=self.calls,
            program=program,
            hints=hints,
            swap=swap,
            submit=lambda item: self.submit(
                item.program,
                item.hints,
                item.id,
                self.session.pending.on_reply,
                waiting=item.waited_for or (self.session.settings.mode == "wait" and not item.background),
                idle=item.background,
                about=text,
            ),
            dispatch=dispatch,
            compile_inline=lambda: self._compile_inline(program, hints, swap),
            id=id,
            piece=self.piece,
            threads=torch.get_num_threads() if program.device == "cpu" else 0,
            to_record=lambda: program.to_bytes(hints, text),
        )
        if self.piece is not None or swap is not self.calls.swap:
            awaited.to_record = None
        if self.piece is None:
            dispatch.awaits[tuple(program.sizes(hints))] = lambda: self.session.pending.await_artifact(awaited)
        return awaited

    def _compile_inline(
        self, program: capture.SerializedGraph, hints: list[int], swap: Swap
    ) -> tuple[Compiled, str] | None:
        """Compile in process. If the compile needs a new trace, make Dynamo retrace the frame at the next call instead.

        A compile of a further variant causes no retrace, because the retrace would discard the code for other sizes.
        Returns None if the graph stays eager or is retraced. Raises NotNow while an eager run may be repeated, because
        the second run must then be eager, too.
        """
        report, traced = self.calls.report, self.traced
        if traced is not None and swap is self.calls.swap:
            failure = self.session.store.failure(report.key)
            if failure is not None and failure.reason in _DYNAMOS:
                if self.session.safe_points.of(traced.code()).is_held() or not traced.is_safe():
                    raise NotNow
                if traced.again(Bypass(failure.message, code=failure.reason)):
                    log.info("graph %s (%s): Dynamo retraces it", report.name, failure.reason)
                    return None
        try:
            return compile_inline(program, hints, self.given)
        except Exception as error:
            interruptions.pass_on(error)
            # Plain torch.compile raises this error at the first call. Here, the error would stop a running service.
            if program.no_stand_in or not (problem := toolchain.problem(error, program.device)):
                raise
            log.info("compiling in process failed, the graph stays eager: %s", error, exc_info=True)
            self.session.outcomes.stays_eager_without_compiler(report, problem)
            return None

    def submit(
        self,
        program: capture.SerializedGraph,
        hints: list[int],
        id: str,
        on_reply: OnReply,
        *,
        waiting: bool = False,
        idle: bool = False,
        about: str | None = None,
    ) -> None:
        """Give the program to the connection's thread, which calls ``on_reply`` with the daemon's replies.

        - ``waiting``: whether a call of the user's program waits for the artifact
        - ``idle``: whether the program already runs compiled code, in pieces
        - ``about``: the result of an earlier ``self.about()``
        """
        from precompiled import wire

        session, report = self.session, self.calls.report
        without_gpu = session.settings.compile_without_gpu
        interpreter, device = environment.worker_for(program.device, program.modules, without_gpu=without_gpu)
        message = wire.Submit(
            id=id,
            key=report.key,
            store=str(session.store.root),
            environment=interpreter,
            device=device,
            name=report.name,
            base=[str(path) for path in session.settings.base],
            farm=bool(session.settings.farm)
            and parts.is_installed(parts.COURIER.module)
            and (without_gpu or program.device == "cpu"),
            waiting=waiting or bool(program.no_stand_in),
            idle=idle,
        )
        graph = program.to_job(self.about() if about is None else about, hints)
        if len(graph) > session.settings.max_graph_bytes:
            # Source lines are only for display. Without them, the graph may be small enough.
            graph = program.to_job("", hints)
        session.connection.submit(message, graph, on_reply)


def compile_inline(
    program: capture.SerializedGraph, hints: list[int], given: compile_after_trace.Given | None = None
) -> tuple[Compiled, str] | None:
    """Compile in this process. Returns the callable and the guards on its sizes, or None if the graph stays eager.

    Raises an error only if plain torch.compile would raise it, too (docs/decisions/0018).
    """
    from precompiled.torch_internals import gpu_room
    from precompiled.torch_internals.worker import compile_graph as compiling

    def compile_here() -> tuple[Compiled, str]:
        plain = group_names.for_a_client(capture.parse(program.to_bytes(hints)), program.groups)
        here = devices.for_a_client(plain, program.device)
        return compile_after_trace.apart(compiling.compile_here, program.device)(here, program.classes, program.meshes)

    try:
        return gpu_room.with_room(compile_here, program.device)
    except CompileFailed as reason:
        interruptions.pass_on(reason)
        # The compiled code would be valid for some calls only. A worker fails for the same reason.
        log.info("a graph stays eager in this process (%s): %s", reason.code, reason)
        return None
    except Exception as error:
        interruptions.pass_on(error)
        if gpu_room.is_full(error) and not program.no_stand_in:
            # The program has filled the GPU's memory since its start. Plain torch.compile would have compiled earlier.
            log.warning("a graph stays eager, because the GPU lacks memory for its code: %s", error)
            return None
        if given is None:
            log.warning("compiling in process failed, the graph stays eager: %s", error, exc_info=True)
            return None
        captured = error
    compiled, raised = _compile_as_given(program, hints, given, captured)
    if raised is not None:
        raise raised  # outside the handlers, so that ``captured`` is not its context
    return None if compiled is None else (compiled, "")


def _compile_as_given(
    program: capture.SerializedGraph, hints: list[int], given: compile_after_trace.Given, captured: Exception
) -> tuple[Compiled | None, Exception | None]:
    """Compile the graph as Dynamo gave it. The compile of its captured program has failed with the error ``captured``.

    Returns a pair: a callable for all calls (or None), and the error to raise (or None). At least one is None.
    """
    try:
        compiled = compile_after_trace.apart(given.compile, program.device)(capture.parse(program.to_bytes(hints)))
    except Exception as error:
        interruptions.pass_on(error)
        # This compile shares only the graph with the compile of the captured program. So if both raise the same type of
        # error, torch is the cause.
        if type(error) is type(captured):
            return None, compile_after_trace.raised_by_dynamo(given.name, error)
        log.warning("compiling in process failed in two ways, the graph stays eager: %r", error, exc_info=captured)
        return None, None
    if compiled is None:
        log.warning("compiling in process failed, the graph stays eager: %s", captured, exc_info=captured)
    return compiled, None
