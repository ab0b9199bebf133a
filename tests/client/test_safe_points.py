"""Tests of when a graph is swapped: never between an eager run and code that may repeat this run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from precompiled.client.dispatch import AWAITS_SAFE_POINT, Dispatch
from precompiled.client.ledger import GraphCalls, GraphReport
from precompiled.client.safe_points import SafePoint, SafePoints
from precompiled.torch_internals.eager import enclosing_regions
from precompiled.torch_internals.eager.stand_in import StandIn


def dispatch(eager: Any, **more: Any) -> Dispatch:
    return Dispatch(GraphCalls(GraphReport(id="", name="")), eager, [], lambda sizes: None, **more)


def graph(function: Callable[..., Any]) -> StandIn:
    return StandIn(torch.fx.symbolic_trace(function))


class Keeper:
    """An object that a checkpoint keeps alive."""


class Repeatable:
    """An eager run that a checkpoint may repeat, as long as the test holds the run's keepers."""

    def __init__(self) -> None:
        self.keepers: list[Keeper] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self, *args: Any) -> Any:
        return "eager"

    def repeated(self, args: Sequence[Any]) -> tuple[object | None, bool]:
        self.meanwhile()
        self.keepers.append(Keeper())
        return self.keepers[-1], False

    def must_not_mix(self, args: Sequence[Any]) -> bool:
        return False

    def looks_for_nan(self, args: Sequence[Any]) -> bool:
        return False

    def before(self, args: Sequence[Any]) -> Callable[[Exception], bool]:
        return lambda error: True


def test_swap_happens_once_no_eager_run_can_be_repeated() -> None:
    eager = Repeatable()
    made = dispatch(eager)
    assert [made.call(), made.call()] == ["eager", "eager"]
    made.serve_with(lambda: "compiled")
    assert made.call() == "eager"
    del eager.keepers[1:]
    gc.collect()
    assert made.call() == "eager"
    eager.keepers.clear()
    gc.collect()
    assert made.call() == "compiled"


def test_whole_graph_waits_while_a_run_in_pieces_can_be_repeated() -> None:
    eager = Repeatable()
    made = dispatch(eager)
    made.serve_with(lambda: "pieces", in_pieces=True)
    assert made.call() == "pieces"
    made.serve_with(lambda: "whole")
    assert made.call() == "pieces"
    eager.keepers.clear()
    gc.collect()
    assert made.call() == "whole"


def test_swap_to_the_whole_graph_during_a_call_in_pieces_serves_this_call() -> None:
    eager = Repeatable()
    made = dispatch(eager)
    made.serve_with(lambda: "pieces", in_pieces=True)
    eager.meanwhile = lambda: made.serve_with(lambda: "whole")
    assert made.call() == "whole"


def test_swap_that_waits_for_a_safe_point_is_reported() -> None:
    eager = Repeatable()
    made = dispatch(eager)
    made.call()
    made.serve_with(lambda: "compiled")
    assert made._calls.report.message == AWAITS_SAFE_POINT
    eager.keepers.clear()
    gc.collect()
    assert made._calls.report.message == ""


def test_graph_does_not_delay_the_swap_of_another() -> None:
    eager = Repeatable()
    dispatch(eager).call()
    other = dispatch(eager)
    other.serve_with(lambda: "compiled")
    assert other.call() == "compiled"


def test_swap_during_the_start_of_a_call_serves_that_call() -> None:
    eager = Repeatable()
    made = dispatch(eager)
    eager.meanwhile = lambda: made.serve_with(lambda: "compiled")
    assert made.call() == "compiled"
    assert made.call() == "compiled"


def test_swap_from_another_thread_waits_for_a_safe_point() -> None:
    eager = Repeatable()
    made = dispatch(eager)
    made.call()
    thread = threading.Thread(target=made.serve_with, args=[lambda: "compiled"])
    thread.start()
    thread.join()
    assert made.call() == "eager"


def test_no_swap_during_a_cuda_graph_capture() -> None:
    capturing = [True]
    made = dispatch(graph(lambda x: x + 1), is_capturing=lambda: capturing[0])
    made.serve_with(lambda x: "compiled")
    assert torch.equal(made.call(torch.zeros(1)), torch.ones(1))
    assert made._calls.snapshot().calls_eager == 1
    capturing[0] = False
    assert made.call(torch.zeros(1)) == "compiled"
    capturing[0] = True
    assert made.call(torch.zeros(1)) == "compiled", "what has run once may be captured"


def test_new_variant_does_not_run_first_during_a_cuda_graph_capture() -> None:
    capturing = [False]
    calls = GraphCalls(GraphReport(id="", name=""))
    eager = graph(lambda size, x: x + 1)
    made = Dispatch(calls, eager, [0], lambda sizes: None, lambda: capturing[0])
    for size in (1, 2):
        made.serve_with(lambda size, x: f"compiled for {size}", lambda sizes, size=size: sizes == [size])
    assert made.call(1, torch.zeros(1)) == "compiled for 1"
    capturing[0] = True
    assert made.call(1, torch.zeros(1)) == "compiled for 1"
    assert torch.equal(made.call(2, torch.zeros(1)), torch.ones(1))
    capturing[0] = False
    assert made.call(2, torch.zeros(1)) == "compiled for 2"
    capturing[0] = True
    assert made.call(2, torch.zeros(1)) == "compiled for 2"


def test_work_forbidden_in_a_capture_waits_for_the_next_call_outside() -> None:
    capturing = [True]
    made = dispatch(graph(lambda x: x + 1), is_capturing=lambda: capturing[0])
    done: list[str] = []
    made.before_next_call(lambda: done.append("compiled in process"), in_captures=False)
    made.call(torch.zeros(1))
    assert not done
    capturing[0] = False
    made.call(torch.zeros(1))
    made.call(torch.zeros(1))
    assert done == ["compiled in process"]


# ---------------------------------------------------------------- with autograd


def one_block() -> tuple[Dispatch, torch.Tensor, list[str]]:
    """Return a block, its weight, and the list of its runs ("eager" or "compiled"). Compiled runs save a different
    number of tensors than eager runs, so a checkpoint raises if it mixes the two.
    """
    weight = torch.ones(4, 4, requires_grad=True)
    ran: list[str] = []

    def eager(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
        ran.append("eager")
        return ((x @ weight).tanh().exp(),)

    class Traced(StandIn):
        def __init__(self) -> None:
            super().__init__(torch.fx.symbolic_trace(lambda x: x))
            self._run = eager

    def compiled(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
        ran.append("compiled")
        return (x @ weight,)

    made = dispatch(Traced())
    made.compiled = compiled  # type: ignore[attr-defined]
    return made, weight, ran


def test_recomputation_runs_as_its_forward_and_the_next_step_is_swapped() -> None:
    made, weight, ran = one_block()

    def step(between: Callable[[], None] = lambda: None) -> None:
        x = torch.ones(2, 4, requires_grad=True)
        loss = checkpoint(lambda x: made.call(x, weight)[0], x, use_reentrant=False).sum()
        between()
        loss.backward()

    step()
    step(lambda: made.serve_with(made.compiled))  # type: ignore[attr-defined]
    step()
    assert ran == ["eager", "eager", "eager", "eager", "compiled", "compiled"]


def test_retained_checkpoint_delays_the_swap_until_it_is_freed() -> None:
    made, weight, ran = one_block()
    x = torch.ones(2, 4, requires_grad=True)
    loss = checkpoint(lambda x: made.call(x, weight)[0], x, use_reentrant=False).sum()
    made.serve_with(made.compiled)  # type: ignore[attr-defined]
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    assert ran == ["eager"] * 3
    del loss
    gc.collect()
    made.call(x, weight)
    assert ran[-1] == "compiled"


def test_later_backward_of_a_checkpoint_recomputes_eager() -> None:
    made, weight, ran = one_block()
    x, other = torch.ones(2, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    left, right = checkpoint(lambda x: (made.call(x, weight)[0], (x @ other).exp().sin()), x, use_reentrant=False)
    left.sum().backward()
    made.serve_with(made.compiled)  # type: ignore[attr-defined]
    right.sum().backward()
    assert set(ran) == {"eager"}


def test_checkpoint_of_a_graph_without_edges_recomputes_eager() -> None:
    """A graph that changes the metadata of its input, for example, has no autograd edges around it."""
    made, weight, ran = one_block()
    made._eager._plain = False  # type: ignore[attr-defined]
    x = torch.ones(2, 4, requires_grad=True)
    loss = checkpoint(lambda x: made.call(x, weight)[0], x, use_reentrant=False).sum()
    made.serve_with(made.compiled)  # type: ignore[attr-defined]
    loss.backward()
    assert ran == ["eager", "eager"]


def two_graphs() -> tuple[Dispatch, Dispatch, SafePoint, torch.Tensor, list[str]]:
    """Return two graphs of one function, with a common safe point. In a recomputation, Dynamo may run the second graph
    instead of the first.
    """
    point = SafePoint()
    first, weight, ran = one_block()
    second = dispatch(first._eager, safe_point=point)
    shared = dispatch(first._eager, safe_point=point)
    second.compiled = shared.compiled = first.compiled  # type: ignore[attr-defined]
    return shared, second, point, weight, ran


def test_recomputation_by_another_graph_is_eager_after_an_eager_forward() -> None:
    first, second, point, weight, ran = two_graphs()
    asked = [first]
    x = torch.ones(2, 4, requires_grad=True)
    loss = checkpoint(lambda x: asked[0].call(x, weight)[0], x, use_reentrant=False).sum()
    second.serve_with(second.compiled)  # type: ignore[attr-defined]
    asked[0] = second
    loss.backward()
    assert ran == ["eager", "eager"]
    del loss
    gc.collect()
    assert not point.is_held()
    second.call(x, weight)
    assert ran[-1] == "compiled"


def test_recomputation_by_another_graph_is_compiled_if_the_forward_was() -> None:
    first, second, _, weight, ran = two_graphs()
    first.serve_with(first.compiled)  # type: ignore[attr-defined]
    second.awaits[()] = lambda: second.serve_with(second.compiled)  # type: ignore[attr-defined]
    asked = [first]
    x = torch.ones(2, 4, requires_grad=True)
    loss = checkpoint(lambda x: asked[0].call(x, weight)[0], x, use_reentrant=False).sum()
    asked[0] = second
    loss.backward()
    assert ran == ["compiled", "compiled"]


def test_each_function_has_its_own_safe_point() -> None:
    points = SafePoints()
    code = one_block.__code__
    assert points.of(code) is points.of(code) is not points.of(two_graphs.__code__)
    assert points.of(None) is not points.of(None)


def test_other_saved_tensor_hooks_do_not_delay_a_swap() -> None:
    made, weight, ran = one_block()
    with torch.autograd.graph.save_on_cpu():
        loss = made.call(torch.ones(2, 4), weight)[0].sum()
        made.serve_with(made.compiled)  # type: ignore[attr-defined]
        made.call(torch.ones(2, 4), weight)
    loss.backward()
    assert ran == ["eager", "compiled"]


def test_reentrant_checkpoint_under_other_hooks_keeps_its_dropout_mask() -> None:
    """The backward of a reentrant checkpoint runs the function with hooks on saved tensors, too."""
    made = dispatch(graph(dropped))
    awaited: list[str] = []
    made.awaits[()] = lambda: awaited.append("waited")
    with torch.autograd.graph.save_on_cpu():
        x = torch.ones(4, requires_grad=True)
        checkpoint(lambda x: made.call(x)[0], x, use_reentrant=True).sum().backward()
    assert awaited == ["waited", "waited"]  # once in the forward and once in the backward


def test_reentrant_checkpoint_of_a_graph_in_pieces_waits_for_the_whole_graph() -> None:
    """The pieces and the whole graph draw different random numbers."""
    made, ran = dispatch(graph(dropped)), []

    def code(name: str) -> Callable[..., Any]:
        return lambda x: (ran.append(name), (x * 2,))[1]

    made.serve_with(code("pieces"), in_pieces=True)
    made.awaits[()] = lambda: made.serve_with(code("whole"))
    made.call(torch.ones(4))
    x = torch.ones(4, requires_grad=True)
    checkpoint(lambda x: made.call(x)[0], x, use_reentrant=True).sum().backward()
    assert ran == ["pieces", "whole", "whole"]


def test_call_that_must_not_run_eager_requests_its_own_sizes() -> None:
    requested: list[list[int]] = []

    def request(sizes: list[int]) -> None:
        requested.append(sizes)
        made.awaits[tuple(sizes)] = lambda: made.serve_with(lambda size, x: "compiled", lambda values: values == sizes)

    eager = graph(lambda size, x: (dropped(x)[0] * size,))
    made = Dispatch(GraphCalls(GraphReport(id="", name="")), eager, [0], request)
    made.awaits[(2,)] = lambda: pytest.fail("for another size")
    with torch.no_grad():
        assert in_a_function(lambda: made.call(3, torch.ones(4))) == "compiled"
    assert requested == [[3]]


def test_one_of_two_threads_compiles_for_equal_sizes() -> None:
    class Raced(dict[tuple[int, ...], Callable[[], None]]):
        def __contains__(self, sizes: object) -> bool:
            found = super().__contains__(sizes)
            self.clear()  # as if another thread had taken the function out of the table
            return found

    made = Dispatch(GraphCalls(GraphReport(id="", name="")), lambda size, x: "eager", [0], lambda sizes: None)
    made.serve_with(lambda size, x: "compiled", lambda values: values == [3])
    made._before = Raced()
    made.before_call_with([2], lambda: made.serve_with(lambda size, x: "compiled", lambda values: values == [2]))
    assert [made.call(size, torch.ones(4)) for size in (3, 2, 2)] == ["compiled"] * 3


def in_a_function(call: Callable[[], Any]) -> Any:
    found = []

    class Runs(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            found.append(call())
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    Runs.apply(torch.ones(1))
    return found[0]


def test_swap_between_forward_and_backward_is_allowed_without_hooks() -> None:
    made, weight, ran = one_block()
    loss = made.call(torch.ones(2, 4), weight)[0].sum()
    made.serve_with(made.compiled)  # type: ignore[attr-defined]
    made.call(torch.ones(2, 4), weight)
    loss.backward()
    assert ran == ["eager", "compiled"]


def dropped(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.nn.functional.dropout(x, 0.5),)


@pytest.mark.parametrize("random", [True, False])
def test_random_graph_in_a_reentrant_checkpoint_waits_for_its_artifact(random: bool) -> None:
    made = dispatch(graph(dropped if random else lambda x: (x * 2,)))
    awaited: list[str] = []

    def comes() -> None:
        awaited.append("waited")
        made.serve_with(lambda x: (x * 3,))

    made.awaits[()] = comes
    x = torch.ones(4, requires_grad=True)
    output = checkpoint(lambda x: made.call(x)[0], x, use_reentrant=True)
    output.sum().backward()
    assert awaited == (["waited"] if random else [])
    assert torch.equal(output, torch.full((4,), 3.0 if random else 2.0))


def test_random_graph_outside_of_a_checkpoint_does_not_wait() -> None:
    made = dispatch(graph(dropped))
    made.awaits[()] = lambda: pytest.fail("it waited")
    for context in (torch.enable_grad(), torch.no_grad()):
        with context:
            made.call(torch.ones(4, requires_grad=True))


functional = torch.nn.functional


@pytest.mark.parametrize(
    ("run", "draws"),
    [
        (lambda x: functional.dropout(x, 0.1, False), False),
        (lambda x: functional.dropout(x, 0.1, True), True),
        (lambda x: functional.dropout(x, 0.0, True), False),
        (lambda x: functional.scaled_dot_product_attention(x, x, x), False),
        (lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1), True),
        (lambda x: x + torch.rand(1), True),
        (lambda x: x.sin(), False),
        (lambda x: x.clone().bernoulli_(), True),
        (lambda x: x[: int(x.sum().item())], True),  # the size depends on data, so the function counts as drawing
    ],
)
def test_use_of_random_numbers_is_detected_without_drawing(run: Callable[..., Any], draws: bool) -> None:
    x, state = torch.randn(1, 2, 8, 8), torch.get_rng_state()
    assert enclosing_regions.draws(run, [x]) is draws
    assert torch.equal(torch.get_rng_state(), state)


# ---------------------------------------------------------------- a graph that must not run eager


def test_graph_that_must_not_run_eager_waits_at_an_unserved_size() -> None:
    """For example, a package of flex_attention with symbolic sizes may be called with a size that has no artifact."""
    requested: list[list[int]] = []

    def request(sizes: list[int]) -> None:
        requested.append(sizes)
        compiled = f"for {sizes[0]}"
        made.awaits[tuple(sizes)] = lambda: made.serve_with(lambda size: compiled, lambda found: found == sizes)

    def eager(*_: Any) -> Any:
        raise AssertionError("it ran eager")

    made = Dispatch(GraphCalls(GraphReport(id="", name="")), eager, [0], request, waits=True)  # type: ignore[arg-type]
    made.serve_with(lambda size: "for 1", lambda sizes: sizes == [1])
    assert [made.call(size) for size in (1, 2, 1, 2, 3)] == ["for 1", "for 2", "for 1", "for 2", "for 3"]
    assert requested == [[2], [3]]


def test_graph_that_must_not_run_eager_needs_no_safe_point() -> None:
    eager = Repeatable()
    dispatch(eager).call()
    point = SafePoint()
    assert eager.keepers and point.hold(eager.keepers[0])
    made = dispatch(eager, safe_point=point, waits=True)
    made.awaits[()] = lambda: made.serve_with(lambda: "compiled")
    assert made.call() == "compiled"
