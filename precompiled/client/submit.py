"""Asking the daemon for a graph's artifact, or for a further variant of it, and awaiting what comes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from precompiled.client.dispatch import Compiled, Dispatch
from precompiled.client.ledger import GraphCalls
from precompiled.client.pending import Awaited
from precompiled.client.session import Session
from precompiled.client.swap import Event, Swap
from precompiled.core.errors import CompileFailed
from precompiled.graph import capture, environment
from precompiled.torch_internals import late

if TYPE_CHECKING:
    from precompiled.client.connection import OnReply

log = logging.getLogger("precompiled.backend")


@dataclass(frozen=True)
class Submitter:
    """Submits one graph. ``about``: gives its source lines, for people (torch_internals/source_lines.py). ``given``:
    the graph as Dynamo gave it, where it can be compiled so once the trace has ended.
    """

    session: Session
    calls: GraphCalls
    about: Callable[[], str]
    given: late.Given | None = None

    def request_variant(self, program: capture.Program, dispatch: Dispatch, sizes: list[int]) -> None:
        """A call after the swap had sizes that no variant serves: it runs eager, and one for them is compiled."""
        try:
            hints = program.hints_for(sizes)
            if hints is not None:
                swap = Swap()
                swap.on(Event.MISS)
                self.submit_and_await(program, dispatch, hints, swap, uuid.uuid4().hex)
        except Exception as error:  # noqa: BLE001 - we are in the user's call, which runs eager
            self.session.ledger.count_reason("fallbacks", "submit-failed")
            log.warning("no variant for the sizes %s: %s", sizes, error)

    def submit_and_await(
        self, program: capture.Program, dispatch: Dispatch, hints: list[int], swap: Swap, id: str
    ) -> Awaited:
        """Submit, and have ``dispatch`` flipped when the artifact is there. Raises what keeps it from being sent."""
        awaited = Awaited(
            calls=self.calls,
            program=program,
            hints=hints,
            swap=swap,
            submit=lambda item: self.submit(
                item.program, item.hints, item.id, self.session.pending.on_reply, waiting=item.waited_for
            ),
            dispatch=dispatch,
            compile_inline=lambda: compile_inline(program, hints, self.given),
            id=id,
            threads=torch.get_num_threads() if program.device == "cpu" else 0,
        )
        dispatch.awaits[tuple(program.sizes(hints))] = lambda: self.session.pending.await_artifact(awaited)
        # Added before it is submitted: an answer must find the graph that it is for.
        self.session.pending.add(awaited)
        try:
            awaited.submit(awaited)
        except BaseException:
            self.session.pending.abandon(awaited)
            raise
        return awaited

    def submit(
        self, program: capture.Program, hints: list[int], id: str, on_reply: OnReply, *, waiting: bool = False
    ) -> None:
        """Hand the program to the connection's thread, which tells ``on_reply`` what the daemon says. ``waiting``: a
        call of the program's waits for it.
        """
        from precompiled import wire

        session, report = self.session, self.calls.report
        message = wire.Submit(
            id=id,
            key=report.key,
            store=str(session.store.root),
            environment=environment.interpreter_of_a_worker(program.modules),
            device=environment.device_of_a_worker(program.device),
            name=report.name,
            waiting=waiting or session.settings.mode == "wait" or bool(program.no_stand_in),
        )
        graph = program.to_bytes(hints, self.about())
        if len(graph) > session.settings.max_graph_bytes:
            graph = program.to_bytes(hints)  # what people are shown must not keep it from being sent
        session.connection.submit(message, graph, on_reply)


def compile_inline(
    program: capture.Program, hints: list[int], given: late.Given | None = None
) -> tuple[Compiled, str] | None:
    """Compile in this process, after all: the callable, and the guards on its sizes; None where the graph stays eager.

    Raises what plain torch.compile would have raised, and nothing that may be our fault (docs/decisions/0018).
    """
    from precompiled.torch_internals import compile as compiling

    try:
        return compiling.compile_here(capture.parse(program.to_bytes(hints)))
    except CompileFailed as reason:
        # What the worker said already: what would come out serves no call but some.
        log.info("a graph stays eager in this process (%s): %s", reason.code, reason)
        return None
    except Exception as error:
        if given is None:
            log.warning("compiling in process failed, the graph stays eager: %s", error, exc_info=True)
            return None
        captured = error
    compiled, raised = _compile_as_given(program, hints, given, captured)
    if raised is not None:
        raise raised  # outside of the handlers: with no error of ours as its context
    return None if compiled is None else (compiled, "")


def _compile_as_given(
    program: capture.Program, hints: list[int], given: late.Given, captured: Exception
) -> tuple[Compiled | None, Exception | None]:
    """Where the captured program fails: what serves all its calls, or what is the user's to see, or neither."""
    try:
        compiled = given.compile(capture.parse(program.to_bytes(hints)))
    except Exception as error:
        # Two compiles that share nothing but the graph: what both raise is torch's.
        if type(error) is type(captured):
            return None, late.raised_by_dynamo(given.name, error)
        log.warning("compiling in process failed in two ways, the graph stays eager: %r", error, exc_info=captured)
        return None, None
    if compiled is None:
        log.warning("compiling in process failed, the graph stays eager: %s", captured, exc_info=captured)
    return compiled, None
