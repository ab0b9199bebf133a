"""The callable that Dynamo keeps for a graph: eager until its artifact is there, then compiled.

An artifact without guards serves every call: one reference is flipped from the eager run to it, and no check is left.
Guards on symbolic sizes are checked at each call; a call that no variant serves runs eager, and a variant for its sizes
is submitted. A flip waits for a safe point (safe_points.py) where an eager run of the graph may be repeated; a call
that must run compiled, since its counterpart did (stand_in.py) or since eager is no stand-in for its graph, waits for
the artifact. So does a call whose eager run raises, and from then on the graph does not run eager any more: there are
operators, types and values for which torch has generated code and no eager kernel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from precompiled.client.ledger import GraphCalls
from precompiled.client.safe_points import SafePoint
from precompiled.torch_internals.client import profiler_ranges

Compiled = Callable[..., Any]
Check = Callable[[list[int]], bool]
# Variants that one graph of a process submits: a loop over ever new sizes must not fill the queue.
MAX_REQUESTS = 16
AWAITS_SAFE_POINT = "its artifact is loaded, and awaits the end of a checkpoint in which it ran eager"


class StandIn(Protocol):
    """What runs a graph eagerly (torch_internals/eager/stand_in.py)."""

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""

    def repeated(self, args: Sequence[Any]) -> tuple[object | None, bool]:
        """Where this call is computed twice, with the same result: an object that lives until the second time; and
        whether this is the second time.
        """

    def must_not_mix(self, args: Sequence[Any]) -> bool:
        """Whether this call has a counterpart that ran compiled, with which an eager run may not agree."""

    def looks_for_nan(self, args: Sequence[Any]) -> bool:
        """Whether this call's operators will be watched one by one, where compiled code is one operator."""

    def before(self, args: Sequence[Any]) -> Callable[[Exception], bool]:
        """To be called before a run: what undoes the run after an exception; false where it is not undone."""


class Dispatch:
    """Dynamo gets ``call``; ``serve_with`` flips it to compiled code, from any thread."""

    def __init__(
        self,
        calls: GraphCalls,
        eager: StandIn,
        size_inputs: list[int],
        request_variant: Callable[[list[int]], None],
        is_capturing: Callable[[], bool] | None = None,
        safe_point: SafePoint | None = None,
        *,
        waits: bool = False,
        stays_eager: bool = False,
        without_a_job: Callable[[list[int]], None] = lambda sizes: None,
        raised: Callable[[Exception, bool], None] = lambda error, served: None,
    ) -> None:
        """``is_capturing``: whether a CUDA graph is being captured. Code that has not run yet must not run in it: its
        first run loads kernels, and measures them.

        ``safe_point``: that of the function whose graph this is. ``waits``: the graph must not run eager: a call that
        no artifact serves waits for one. ``stays_eager``: what is to serve calls is noted, and an eager run serves them
        (session.py). ``without_a_job``: called where such a call has nothing to wait for, with the values of the size
        inputs; it may set what the call waits for, and what it raises, the call raises. ``raised``: called where
        an eager run has raised: before its call waits for compiled code, and, with true, once that has served the call.
        """
        self._calls = calls
        self._eager = eager
        self._size_inputs = size_inputs
        self._request_variant = request_variant
        self._safe_point = safe_point or SafePoint()
        self._waits = waits
        self._stays_eager = stays_eager
        self._without_a_job = without_a_job
        self._raised = raised
        self._is_capturing = is_capturing
        self._variants: list[tuple[Check, Compiled]] = []  # those that serve calls; only ever longer
        self._loaded: tuple[tuple[Check | None, Compiled], ...] = ()  # those, and the ones that await a safe point
        self._requested: set[tuple[int, ...]] = set()
        # By the values of the size inputs: waits until the artifact for them is there, or will not come. Set by
        # Submitter.submit_and_await.
        self.awaits: dict[tuple[int, ...], Callable[[], None]] = {}
        self._before: dict[tuple[int, ...], Callable[[], None]] = {}  # by the same values: what a call does first

        flipped: Compiled | None = None

        def unserved(*args: Any) -> Any:
            return self._run_eager(args, lambda: flipped)

        run: Compiled = unserved

        def call(*args: Any) -> Any:
            calls.calls += 1
            return run(*args)

        def flip(function: Compiled) -> None:
            nonlocal run, flipped
            if calls.calls_before_flip is None:
                calls.calls_before_flip = calls.calls
            run = flipped = function

        def before_next_call(action: Callable[[], None], *, in_captures: bool = True) -> None:
            nonlocal run
            then = run

            def first(*args: Any) -> Any:
                nonlocal run
                if not in_captures and is_capturing is not None and is_capturing():
                    return then(*args)
                if run is first:
                    run = then
                action()
                return then(*args)

            run = first

        self.call = call
        self._flip = flip
        # For a fork's child, among others: it awaits the artifact only where it calls the graph. ``in_captures``: also
        # where that call is in a capture.
        self.before_next_call = before_next_call

    def before_call_with(self, sizes: list[int], action: Callable[[], None]) -> None:
        """At the next call with these values of the size inputs that nothing serves, outside of captures."""
        self._before[tuple(sizes)] = action

    def serve_with(self, function: Compiled, check: Check | None = None) -> None:
        """Serve calls with ``function`` from the next one on, or from the next safe point on. ``check``: whether it
        serves given values of the size inputs; None: all.
        """
        if self._stays_eager:
            function = self._eager
        self._loaded = (*self._loaded, (check, function))
        self._safe_point.when_safe(functools.partial(self._serve, function, check), otherwise=self._say_that_it_awaits)

    def _say_that_it_awaits(self) -> None:
        self._calls.report.message = AWAITS_SAFE_POINT

    def _serve(self, function: Compiled, check: Check | None) -> None:
        if self._calls.report.message == AWAITS_SAFE_POINT:
            self._calls.report.message = ""
        if check is None:
            self._flip(profiler_ranges.swapped(
                self._not_first_in_a_capture(function, self._flip), self._calls.report.name, self._flip
            ))  # fmt: skip
            return
        slot = len(self._variants)

        def settle(function: Compiled) -> None:
            self._variants[slot] = (check, function)

        self._variants.append((check, self._not_first_in_a_capture(function, settle)))
        self._flip(self._guarded)

    def _not_first_in_a_capture(self, function: Compiled, settle: Callable[[Compiled], None]) -> Compiled:
        """``function``, but eager where it would run in a capture for the first time. ``settle`` gets ``function`` as
        it is, once no check is needed any more.
        """
        is_capturing, eager = self._is_capturing, self._eager
        if is_capturing is None:
            return function

        def first(*args: Any) -> Any:
            if is_capturing():
                self._calls.calls_unserved += 1
                return eager(*args)
            result = function(*args)
            settle(function)
            return result

        return first

    def _variant(self, sizes: list[int]) -> Compiled | None:
        return next((function for check, function in self._variants if check(sizes)), None)

    def _guarded(self, *args: Any) -> Any:
        sizes = [args[position] for position in self._size_inputs]
        for check, function in self._variants:
            if check(sizes):
                return function(*args)
        is_capturing = self._is_capturing is not None and self._is_capturing()
        # Of several threads with these sizes one gets it.
        if not is_capturing and (action := self._before.pop(tuple(sizes), None)) is not None:
            action()
            if (served := self._variant(sizes)) is not None:
                return served(*args)
        self._calls.calls_unserved += 1
        self._request(sizes)
        return self._run_eager(args, lambda: self._variant(sizes))

    def _request(self, sizes: list[int]) -> None:
        known = tuple(sizes)
        if known not in self._requested and len(self._requested) < MAX_REQUESTS:
            self._requested.add(known)
            self._request_variant(sizes)

    def _run_eager(self, args: tuple[Any, ...], served: Callable[[], Compiled | None]) -> Any:
        """``served()``: the compiled function, where the swap came after this call began, else None."""
        eager = self._eager
        if (self._waits or eager.looks_for_nan(args)) and (function := self._await(args)) is not None:
            return function(*args)
        keeper, again = eager.repeated(args)
        if keeper is not None and not again:
            is_new = self._safe_point.hold(keeper)
            function = served()
            if function is None:
                del keeper  # or the traceback of an error of the graph would hold it
                return self._try_eager(args, is_first=is_new)
            if is_new:
                self._safe_point.release(keeper)
            return function(*args)
        # Another graph of the function ran this computation compiled the first time: Dynamo tries the graph first that
        # it used last.
        is_compiled = keeper is not None and not self._safe_point.is_held(keeper)
        if is_compiled or eager.must_not_mix(args):
            function = self._await(args)
            if function is not None:
                return function(*args)
        return eager(*args) if again else self._try_eager(args, is_first=True)

    def _try_eager(self, args: tuple[Any, ...], *, is_first: bool) -> Any:
        """Run eager. An exception of that run is the program's only if compiled code raises one, too. ``is_first``: no
        other eager run has the same keeper, with which compiled code would not agree.
        """
        eager = self._eager
        if not is_first or self._stays_eager or (self._is_capturing is not None and self._is_capturing()):
            return eager(*args)
        undo = eager.before(args)
        try:
            return eager(*args)
        except Exception as error:
            if not undo(error):
                raise
            cause = error
        # Outside of the handler: what compiled code raises has no error of the eager run as its context.
        return self._run_instead(args, cause)

    def _run_instead(self, args: tuple[Any, ...], error: Exception) -> Any:
        """Run compiled code after the eager run has raised ``error``, and was undone."""
        keeper, _ = self._eager.repeated(args)
        if keeper is not None:
            self._safe_point.release(keeper)  # its second run will be compiled, too
        del keeper
        waits, self._waits = self._waits, True
        self._raised(error, False)
        try:
            function = self._await(args)
            if function is None:
                raise error
            outputs = function(*args)
        except Exception:
            self._waits = waits  # there is no compiled code, or it raises as well
            raise
        self._raised(error, True)
        return outputs

    def _await(self, args: tuple[Any, ...]) -> Compiled | None:
        """Wait for compiled code for this call; None where there will be none."""
        sizes = [args[position] for position in self._size_inputs]
        if (function := self._ready(sizes)) is not None:
            return function
        if tuple(sizes) not in self.awaits and self._size_inputs:
            self._request(sizes)
        if self._waits and tuple(sizes) not in self.awaits:
            self._without_a_job(sizes)
        wait = self.awaits.get(tuple(sizes))
        if wait is not None:
            wait()
        return self._ready(sizes)

    def _ready(self, sizes: list[int]) -> Compiled | None:
        """What is loaded for these sizes, whether or not a safe point has come."""
        return next((function for check, function in self._loaded if check is None or check(sizes)), None)


def counting(calls: GraphCalls, function: Compiled) -> Compiled:
    """``function``, with its calls counted."""

    def call(*args: Any) -> Any:
        calls.calls += 1
        return function(*args)

    return call
