"""The callable that Dynamo keeps for a graph: eager until its artifact is there, then compiled.

An artifact without guards serves every call, and takes the place of eager by the flip of one reference: nothing else is
left in the way. One with guards on symbolic sizes is asked at each call; a call that no variant serves runs eager, and
a variant for its sizes is asked for. A flip waits for a safe point (safe_points.py) where an eager run of the graph may
be repeated; and a call that must be compiled, since its counterpart is, waits for the artifact (stand_in.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from precompiled.client.ledger import GraphCalls
from precompiled.client.safe_points import SafePoint

Compiled = Callable[..., Any]
Check = Callable[[list[int]], bool]
# Sizes for which a variant was asked for, in one graph and process: a loop over ever new sizes must not fill the queue.
MAX_REQUESTS = 16
AWAITS_SAFE_POINT = "its artifact is loaded, and awaits the end of a checkpoint in which it ran eager"


class StandIn(Protocol):
    """What runs a graph eagerly (torch_internals/stand_in.py)."""

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs."""

    def repeated(self, args: Sequence[Any]) -> tuple[object | None, bool]:
        """Where this call is computed twice, and must find the same both times: what lives until the second time; and
        whether this is the second time.
        """

    def must_not_mix(self, args: Sequence[Any]) -> bool:
        """Whether this call has a counterpart that it must agree with, and eager may not."""


class Dispatch:
    """``call`` is what Dynamo gets; ``serve_with`` is the flip, from any thread."""

    def __init__(
        self,
        calls: GraphCalls,
        eager: StandIn,
        size_inputs: list[int],
        request_variant: Callable[[list[int]], None],
        is_capturing: Callable[[], bool] | None = None,
        safe_point: SafePoint | None = None,
    ) -> None:
        """``is_capturing``: whether the call is being recorded (a CUDA graph's capture), and must not load code.

        ``safe_point``: of the graphs that Dynamo may take for this one.
        """
        self._calls = calls
        self._eager = eager
        self._size_inputs = size_inputs
        self._request_variant = request_variant
        self._safe_point = safe_point or SafePoint()
        self._variants: tuple[tuple[Check, Compiled], ...] = ()  # what calls are served with
        self._loaded: tuple[tuple[Check | None, Compiled], ...] = ()  # the same, and what awaits a safe point
        self._requested: set[tuple[int, ...]] = set()
        # By the values of the size inputs: waits until the artifact for them is there, or will not come. Set by
        # Submitter.submit_and_await.
        self.awaits: dict[tuple[int, ...], Callable[[], None]] = {}

        def unserved(*args: Any) -> Any:
            return self._run_eager(args, lambda: None if run is unserved else run)

        run: Compiled = unserved

        def call(*args: Any) -> Any:
            calls.calls += 1
            return run(*args)

        def flip(function: Compiled) -> None:
            nonlocal run
            if calls.calls_before_flip is None:
                calls.calls_before_flip = calls.calls
            if is_capturing is None:
                run = function
                return

            def outside_of_captures(*args: Any) -> Any:
                nonlocal run
                if is_capturing():
                    return eager(*args)
                run = function
                return function(*args)

            run = outside_of_captures

        def before_next_call(action: Callable[[], None]) -> None:
            nonlocal run
            then = run

            def first(*args: Any) -> Any:
                nonlocal run
                if run is first:
                    run = then
                action()
                return then(*args)

            run = first

        self.call = call
        self._flip = flip
        # Used in a fork's child: it takes up what the parent awaited only if it calls the graph at all.
        self.before_next_call = before_next_call

    def serve_with(self, function: Compiled, check: Check | None = None) -> None:
        """From the next call on, or the next safe point; ``check``: which values of the size inputs it serves, None
        for all.
        """
        self._loaded = (*self._loaded, (check, function))
        self._safe_point.when_safe(functools.partial(self._serve, function, check), otherwise=self._say_that_it_awaits)

    def _say_that_it_awaits(self) -> None:
        self._calls.report.message = AWAITS_SAFE_POINT

    def _serve(self, function: Compiled, check: Check | None) -> None:
        if self._calls.report.message == AWAITS_SAFE_POINT:
            self._calls.report.message = ""
        if check is None:
            self._flip(function)
            return
        self._variants = (*self._variants, (check, function))
        self._flip(self._guarded)

    def _variant(self, sizes: list[int]) -> Compiled | None:
        return next((function for check, function in self._variants if check(sizes)), None)

    def _guarded(self, *args: Any) -> Any:
        sizes = [args[position] for position in self._size_inputs]
        for check, function in self._variants:
            if check(sizes):
                return function(*args)
        self._calls.calls_unserved += 1
        self._request(sizes)
        return self._run_eager(args, lambda: self._variant(sizes))

    def _request(self, sizes: list[int]) -> None:
        known = tuple(sizes)
        if known not in self._requested and len(self._requested) < MAX_REQUESTS:
            self._requested.add(known)
            self._request_variant(sizes)

    def _run_eager(self, args: tuple[Any, ...], served: Callable[[], Compiled | None]) -> Any:
        """``served()``: the compiled function, if a swap came after this call began, else None."""
        eager = self._eager
        keeper, again = eager.repeated(args)
        if keeper is not None and not again:
            is_new = self._safe_point.hold(keeper)
            function = served()
            if function is None:
                del keeper  # an error of the graph's must not keep it
                return eager(*args)
            if is_new:
                self._safe_point.release(keeper)
            return function(*args)
        # The first run of this computation was compiled, by another graph of the function: Dynamo asks the graph first
        # that it used last.
        is_compiled = keeper is not None and not self._safe_point.is_held(keeper)
        if is_compiled or eager.must_not_mix(args):
            function = self._await(args)
            if function is not None:
                return function(*args)
        return eager(*args)

    def _await(self, args: tuple[Any, ...]) -> Compiled | None:
        """The compiled graph for this call, as soon as it is loaded; None where there is none to be had."""
        sizes = [args[position] for position in self._size_inputs]
        if tuple(sizes) not in self.awaits and self._size_inputs:
            self._request(sizes)
        wait = self.awaits.get(tuple(sizes))
        if wait is not None:
            wait()
        return next((function for check, function in self._loaded if check is None or check(sizes)), None)


def counting(calls: GraphCalls, function: Compiled) -> Compiled:
    """``function``, with its calls counted."""

    def call(*args: Any) -> Any:
        calls.calls += 1
        return function(*args)

    return call
