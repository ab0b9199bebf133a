"""Decides how a graph runs if no artifact will come: it stays eager, or its next call compiles it in process."""

from __future__ import annotations

import functools
import time

from precompiled.client.awaited import Awaited, NotNow, SessionView
from precompiled.client.swap import Event, Instruction
from precompiled.core.errors import COMPILE_ERROR
from precompiled.core.reasons import Outcome, outcome
from precompiled.core.spans import IN_PROCESS
from precompiled.torch_internals.graph.symbolic_sizes import guard_check


def fall_back(session: SessionView, item: Awaited, code: str, message: str) -> None:
    """Leave the graph eager in this process, or make its next call compile it as plain torch.compile does.

    ``outcome`` (core/reasons.py) decides by ``code``.
    """
    if item.piece is not None:
        item.swap.on(Event.FAILED)
        item.piece.fail(code, message)
        return
    report, warn = item.calls.report, session.outcomes.warn_once
    report.reason, report.message = code, message
    if session.requires:
        session.outcomes.not_served(item.calls, code, message)  # the waiting call raises
    elif (
        outcome(code, runs=not item.program.no_stand_in) is Outcome.EAGER
        # `--target`: compiled code cannot run on this host
        or (session.stays_eager and not item.program.no_stand_in)
    ):
        item.swap.on(Event.FAILED)
        session.ledger.count_reason("fallbacks", code)
        session.outcomes.warn_stays_eager(report.name, code, message)
    elif item.swap.on(Event.REFUSED) is Instruction.COMPILE_INLINE_LATER:
        session.ledger.count_reason("fallbacks", code)
        if code != COMPILE_ERROR:  # the compile in process will raise this error
            warn(code, f"a graph is compiled in process ({code}): {report.name}: {message}")
        compile_later(session, item)


def compile_later(session: SessionView, item: Awaited) -> None:
    action = functools.partial(compile_now, session, item)
    if item.swap is item.calls.swap:
        item.dispatch.before_next_call(action, in_captures=False)
    else:  # compile only at the next call with these sizes
        item.dispatch.before_call_with(item.program.sizes(item.hints), action)


def compile_now(session: SessionView, item: Awaited) -> None:
    """Compile in process, in the caller's thread, just before a call. Raises what plain torch.compile would raise."""
    # One thread compiles, and the others run eager meanwhile. A thread whose call must not run eager waits for the
    # lock.
    with item.compiling:
        if not item.compiled_here:
            _compile(session, item)


def _compile(session: SessionView, item: Awaited) -> None:
    item.compiled_here = True
    started = time.perf_counter()
    try:
        compiled = item.compile_inline()
    except NotNow:
        item.compiled_here = False
        compile_later(session, item)
        return
    except BaseException:
        # The next call compiles again, as with plain torch.compile. The error is not stored, because its traceback
        # would keep the program's tensors alive.
        item.compiled_here = False
        compile_later(session, item)
        raise
    item.calls.spent(IN_PROCESS, time.perf_counter() - started)
    if compiled is not None:
        function, guards = compiled
        item.dispatch.serve_with(function, guard_check(guards) if guards else None)
        if item.swap is item.calls.swap:  # a further variant does not change the graph's source
            session.outcomes.compiled_here(item.calls)
