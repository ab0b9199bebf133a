"""When a swap comes: not between an eager run and what may run it again."""

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
    """What a checkpoint keeps."""


class Repeatable:
    """An eager run that is always repeatable, for as long as the test keeps the keepers."""

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


def test_a_swap_comes_when_nothing_can_repeat_an_eager_run_any_more() -> None:
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


def test_what_a_swap_waits_for_is_reported() -> None:
    eager = Repeatable()
    made = dispatch(eager)
    made.call()
    made.serve_with(lambda: "compiled")
    assert made._calls.report.message == AWAITS_SAFE_POINT
    eager.keepers.clear()
    gc.collect()
    assert made._calls.report.message == ""


def test_one_graph_does_not_hold_another_back() -> None:
    eager = Repeatable()
    dispatch(eager).call()
    other = dispatch(eager)
    other.serve_with(lambda: "compiled")
    assert other.call() == "compiled"


def test_a_swap_that_comes_while_a_call_begins_serves_that_call() -> None:
    eager = Repeatable()
    made = dispatch(eager)
    eager.meanwhile = lambda: made.serve_with(lambda: "compiled")
    assert made.call() == "compiled"
    assert made.call() == "compiled"


def test_a_swap_in_another_thread_does_not_come_between() -> None:
    eager = Repeatable()
    made = dispatch(eager)
    made.call()
    thread = threading.Thread(target=made.serve_with, args=[lambda: "compiled"])
    thread.start()
    thread.join()
    assert made.call() == "eager"


def test_a_capture_of_a_cuda_graph_is_not_swapped() -> None:
    capturing = [True]
    made = dispatch(graph(lambda x: x + 1), is_capturing=lambda: capturing[0])
    made.serve_with(lambda x: "compiled")
    assert torch.equal(made.call(torch.zeros(1)), torch.ones(1))
    assert made._calls.snapshot().calls_eager == 1
    capturing[0] = False
    assert made.call(torch.zeros(1)) == "compiled"
    capturing[0] = True
    assert made.call(torch.zeros(1)) == "compiled", "what has run once may be captured"


def test_a_variant_runs_for_the_first_time_outside_of_a_capture_while_another_is_captured() -> None:
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


def test_what_may_not_be_done_in_a_capture_is_done_before_the_next_call_outside_of_one() -> None:
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
    """A block that says how it ran; compiled, it saves another number of tensors."""
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


def test_a_recomputation_is_as_its_forward_was_and_the_next_forward_is_swapped() -> None:
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


def test_a_checkpoint_that_is_retained_holds_until_it_is_gone() -> None:
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


def test_a_branch_of_a_checkpoint_that_is_used_later_computes_it_again_as_it_was() -> None:
    made, weight, ran = one_block()
    x, other = torch.ones(2, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
    left, right = checkpoint(lambda x: (made.call(x, weight)[0], (x @ other).exp().sin()), x, use_reentrant=False)
    left.sum().backward()
    made.serve_with(made.compiled)  # type: ignore[attr-defined]
    right.sum().backward()
    assert set(ran) == {"eager"}


def test_a_checkpoint_is_repeated_as_it_was_where_the_graph_has_no_edges() -> None:
    """Of one that changes metadata of its input, for instance."""
    made, weight, ran = one_block()
    made._eager._plain = False  # type: ignore[attr-defined]
    x = torch.ones(2, 4, requires_grad=True)
    loss = checkpoint(lambda x: made.call(x, weight)[0], x, use_reentrant=False).sum()
    made.serve_with(made.compiled)  # type: ignore[attr-defined]
    loss.backward()
    assert ran == ["eager", "eager"]


def two_graphs() -> tuple[Dispatch, Dispatch, SafePoint, torch.Tensor, list[str]]:
    """Of one function: Dynamo may ask the second one for what the first one has computed."""
    point = SafePoint()
    first, weight, ran = one_block()
    second = dispatch(first._eager, safe_point=point)
    shared = dispatch(first._eager, safe_point=point)
    second.compiled = shared.compiled = first.compiled  # type: ignore[attr-defined]
    return shared, second, point, weight, ran


def test_a_recomputation_by_another_graph_is_eager_where_its_forward_was() -> None:
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


def test_a_recomputation_by_another_graph_is_compiled_where_its_forward_was() -> None:
    first, second, _, weight, ran = two_graphs()
    first.serve_with(first.compiled)  # type: ignore[attr-defined]
    second.awaits[()] = lambda: second.serve_with(second.compiled)  # type: ignore[attr-defined]
    asked = [first]
    x = torch.ones(2, 4, requires_grad=True)
    loss = checkpoint(lambda x: asked[0].call(x, weight)[0], x, use_reentrant=False).sum()
    asked[0] = second
    loss.backward()
    assert ran == ["compiled", "compiled"]


def test_graphs_of_other_functions_have_other_safe_points() -> None:
    points = SafePoints()
    code = one_block.__code__
    assert points.of(code) is points.of(code) is not points.of(two_graphs.__code__)
    assert points.of(None) is not points.of(None)


def test_other_hooks_on_saved_tensors_hold_nothing_back() -> None:
    made, weight, ran = one_block()
    with torch.autograd.graph.save_on_cpu():
        loss = made.call(torch.ones(2, 4), weight)[0].sum()
        made.serve_with(made.compiled)  # type: ignore[attr-defined]
        made.call(torch.ones(2, 4), weight)
    loss.backward()
    assert ran == ["eager", "compiled"]


def test_a_reentrant_checkpoint_under_other_hooks_has_one_mask() -> None:
    """In its backward, saved tensors are hooked as well."""
    made = dispatch(graph(dropped))
    awaited: list[str] = []
    made.awaits[()] = lambda: awaited.append("waited")
    with torch.autograd.graph.save_on_cpu():
        x = torch.ones(4, requires_grad=True)
        checkpoint(lambda x: made.call(x)[0], x, use_reentrant=True).sum().backward()
    assert awaited == ["waited", "waited"]  # in the forward, and in the backward


def test_a_call_that_must_not_run_eager_asks_for_its_own_sizes() -> None:
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


def test_of_two_threads_with_the_same_sizes_one_compiles_for_them() -> None:
    class Raced(dict[tuple[int, ...], Callable[[], None]]):
        def __contains__(self, sizes: object) -> bool:
            found = super().__contains__(sizes)
            self.clear()  # the other thread has it
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


def test_without_hooks_a_swap_comes_between_forward_and_backward() -> None:
    made, weight, ran = one_block()
    loss = made.call(torch.ones(2, 4), weight)[0].sum()
    made.serve_with(made.compiled)  # type: ignore[attr-defined]
    made.call(torch.ones(2, 4), weight)
    loss.backward()
    assert ran == ["eager", "compiled"]


def dropped(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.nn.functional.dropout(x, 0.5),)


@pytest.mark.parametrize("random", [True, False])
def test_in_a_reentrant_checkpoint_what_draws_random_numbers_waits(random: bool) -> None:
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


def test_outside_of_what_is_computed_again_nothing_waits_for_random_numbers() -> None:
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
        (lambda x: x[: int(x.sum().item())], True),  # cannot be told
    ],
)
def test_what_draws_random_numbers_is_told_without_drawing(run: Callable[..., Any], draws: bool) -> None:
    x, state = torch.randn(1, 2, 8, 8), torch.get_rng_state()
    assert enclosing_regions.draws(run, [x]) is draws
    assert torch.equal(torch.get_rng_state(), state)


# ---------------------------------------------------------------- a graph that must not run eager


def test_a_graph_that_must_not_run_eager_waits_at_a_size_that_no_artifact_serves() -> None:
    """As flex_attention with symbolic sizes, whose package another size uses."""
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


def test_a_graph_that_must_not_run_eager_waits_for_no_safe_point() -> None:
    eager = Repeatable()
    dispatch(eager).call()
    point = SafePoint()
    assert eager.keepers and point.hold(eager.keepers[0])
    made = dispatch(eager, safe_point=point, waits=True)
    made.awaits[()] = lambda: made.serve_with(lambda: "compiled")
    assert made.call() == "compiled"
