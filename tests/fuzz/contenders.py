"""Defines the ways to run a program: plain ``torch.compile``, precompiled with swaps at given points, and eager.

Only the last step of a compile is replaced: ATen's operators run instead of generated code. C++ compilers would need
thousands of hours for a fuzz test of generated code; tests/e2e tests generated code. All other parts are real: Dynamo,
Inductor's passes, AOTAutograd with Inductor's partitioner, the stand-in, the dispatch and the safe points.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch
import torch._functorch.config
import torch._inductor.config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.utils import output_node
from torch._subclasses.fake_tensor import FakeTensor

from precompiled.client.dispatch import Dispatch
from precompiled.client.ledger import GraphCalls, GraphReport
from precompiled.client.safe_points import SafePoints
from precompiled.torch_internals.eager.stand_in import StandIn
from precompiled.torch_internals.graph import graph_codec, layers, trace_origin

from .programs import Plan, Run, Story


class Crash(BaseException):
    """Generated code would have crashed here. This is not an Exception, because a crash cannot be handled."""


def _runs_aten(module: torch.fx.GraphModule, *_: Any, **__: Any) -> Callable[..., Any]:
    """Return a function that runs the graph with ATen's operators, in place of generated code.

    Like generated code, the function takes its arguments as a list and empties the list.
    """
    output_node(module)

    def call(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        if any(isinstance(value, FakeTensor) for value in given):
            raise Crash("generated code would read the memory of a fake tensor")
        # Like generated code (reinterpret_tensor), return a separate tensor over the same memory instead of a view.
        return [
            value.detach() if isinstance(value, torch.Tensor) and value._is_view() else value
            for value in module.forward(*given)
        ]

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def compiled(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    return compile_fx(module, inputs, inner_compile=_runs_aten)  # type: ignore[no-any-return]


def _in_pieces(module: torch.fx.GraphModule, stand_in: torch.fx.GraphModule) -> Callable[..., Any] | None:
    """Return a function that runs the graph in pieces, as client/pieces.py composes it, or None if it is not cut."""
    cut = layers.cut(module)
    if cut is None:
        return None
    functions = []
    for piece in cut.pieces:
        inputs = [node.meta["example_value"] for node in piece.graph.nodes if node.op == "placeholder"]
        functions.append(compiled(graph_codec.decode(graph_codec.encode(piece)), inputs))
    return StandIn(stand_in, run=layers.composed(cut, functions))


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def settings(*, eagers_random_numbers: bool, dtype: torch.dtype = torch.float32) -> Iterator[None]:
    torch._dynamo.reset()
    with (
        _default_dtype(dtype),
        torch._inductor.config.patch(fallback_random=eagers_random_numbers, force_disable_caches=True),
        # As in a worker, the backward is compiled together with the forward. load_artifact.py explains why buffers are
        # not donated.
        torch._functorch.config.patch(force_non_lazy_backward_lowering=True, donated_buffer=False),
        torch._dynamo.config.patch(cache_size_limit=64, accumulated_cache_size_limit=256),
    ):
        yield


def plain(plan: Plan) -> Story:
    return Run(plan, lambda function: torch.compile(function, backend=compiled)).story()


def eager(plan: Plan) -> Story:
    return Run(plan, lambda function: function).story()


class Swapped:
    """A program under precompiled. Dynamo traces the program once, and any number of schedules of swaps can follow."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._graphs: list[_Graph] = []
        self._ticks = 0
        self._schedule = random.Random(plan.seed)
        self._run = Run(plan, lambda function: torch.compile(function, backend=self._backend))
        self._run.tick = self._tick
        self.swaps = 0  # swaps during runs of the program, over all schedules
        self.swaps_to_pieces = 0
        self.waits = 0
        self._span = 1
        self._safe_points = SafePoints()

    def _backend(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        stand_in = graph_codec.decode(graph_codec.encode(module))  # a copy, because Inductor's passes change the module
        pieces = _in_pieces(module, stand_in)
        graph = _Graph(StandIn(stand_in), pieces, compiled(module, inputs), trace_origin.function())
        self._graphs.append(graph)
        self._arm(graph)

        def call(*args: Any) -> Any:
            return graph.dispatch.call(*args)  # the dispatch of the current schedule

        return call

    def _arm(self, graph: _Graph) -> None:
        """Reset a graph to eager, and draw the times of its swaps: at the start, at a tick, or never.

        A graph with equal layers is swapped twice, to its pieces and to the whole graph, unless both times are equal.
        """
        graph.dispatch = Dispatch(
            GraphCalls(GraphReport(id="", name="")),
            graph.stand_in,
            [],
            lambda sizes: None,
            safe_point=self._safe_points.of(graph.code),
        )
        graph.served = graph.served_in_pieces = False
        dispatch = graph.dispatch

        def come() -> None:
            if not graph.served and graph.dispatch is dispatch:
                graph.served = True
                self.waits += 1
                dispatch.serve_with(graph.compiled)

        dispatch.awaits[()] = come
        graph.at = self._ticks + self._schedule.randint(0, self._span)
        if graph.pieces is not None:
            graph.in_pieces_at = self._ticks + self._schedule.randint(0, graph.at - self._ticks)
            if self._schedule.random() < 0.3:
                self._serve_in_pieces(graph)
        if self._schedule.random() < 0.1:
            self._serve(graph)

    def _serve(self, graph: _Graph) -> None:
        graph.served = True
        self.swaps += 1
        graph.dispatch.serve_with(graph.compiled)

    def _serve_in_pieces(self, graph: _Graph) -> None:
        assert graph.pieces is not None
        graph.served_in_pieces = True
        self.swaps_to_pieces += 1
        graph.dispatch.serve_with(graph.pieces, in_pieces=True)

    def _tick(self) -> None:
        self._ticks += 1
        for graph in self._graphs:
            if graph.pieces is not None and not graph.served_in_pieces and graph.in_pieces_at <= self._ticks < graph.at:
                self._serve_in_pieces(graph)
            if not graph.served and self._ticks >= graph.at:
                self._serve(graph)

    def story(self) -> Story:
        """Run the program with a different schedule. Unfinished calls of the last run must not delay swaps of this
        run.
        """
        before, self._ticks = self._ticks, 0
        self._safe_points = SafePoints()
        self._span = max(before, 12)
        for graph in self._graphs:
            self._arm(graph)
        return self._run.story()


class _Graph:
    def __init__(
        self,
        stand_in: StandIn,
        pieces: Callable[..., Any] | None,
        function: Callable[..., Any],
        code: CodeType | None,
    ) -> None:
        self.stand_in, self.pieces, self.compiled, self.code = stand_in, pieces, function, code
        self.dispatch: Dispatch
        self.served = self.served_in_pieces = False
        self.at = self.in_pieces_at = 0
