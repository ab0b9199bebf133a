"""The callable that Dynamo keeps for a graph: eager until its artifact is there, then compiled.

An artifact without guards serves every call, and takes the place of eager by the flip of one reference: nothing else is
left in the way. One with guards on symbolic sizes is asked at each call; a call that no variant serves runs eager, and
a variant for its sizes is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from precompiled.ledger import GraphCalls

Compiled = Callable[..., Any]
# Sizes for which a variant was asked for, in one graph and process: a loop over ever new sizes must not fill the queue.
MAX_REQUESTS = 16


class Dispatch:
    """``call`` is what Dynamo gets; ``serve_with`` is the flip, from any thread."""

    def __init__(
        self,
        calls: GraphCalls,
        eager: Compiled,
        size_inputs: list[int],
        request_variant: Callable[[list[int]], None],
    ) -> None:
        self._calls = calls
        self._eager = eager
        self._size_inputs = size_inputs
        self._request_variant = request_variant
        self._variants: tuple[tuple[Callable[[list[int]], bool], Compiled], ...] = ()
        self._requested: set[tuple[int, ...]] = set()
        run = eager

        def call(*args: Any) -> Any:
            calls.calls += 1
            return run(*args)

        def flip(function: Compiled) -> None:
            nonlocal run
            if calls.calls_before_flip is None:
                calls.calls_before_flip = calls.calls
            run = function

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

    def serve_with(self, function: Compiled, check: Callable[[list[int]], bool] | None = None) -> None:
        """From the next call on; ``check``: which values of the size inputs it serves, None for all."""
        if check is None:
            self._flip(function)
            return
        self._variants = (*self._variants, (check, function))
        self._flip(self._guarded)

    def _guarded(self, *args: Any) -> Any:
        sizes = [args[position] for position in self._size_inputs]
        for check, function in self._variants:
            if check(sizes):
                return function(*args)
        self._calls.calls_unserved += 1
        known = tuple(sizes)
        if known not in self._requested and len(self._requested) < MAX_REQUESTS:
            self._requested.add(known)
            self._request_variant(sizes)
        return self._eager(*args)


def counting(calls: GraphCalls, function: Compiled) -> Compiled:
    """``function``, with its calls counted."""

    def call(*args: Any) -> Any:
        calls.calls += 1
        return function(*args)

    return call
