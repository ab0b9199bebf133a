"""When a swap comes: not between an eager run and what may run it again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from precompiled.dispatch import Dispatch
from precompiled.ledger import GraphCalls, GraphReport
from precompiled.safe_points import Hold, SafePoints
from precompiled.torch_internals import surroundings
from precompiled.torch_internals.stand_in import StandIn


def dispatch(eager: Any, points: SafePoints, **more: Any) -> Dispatch:
    return Dispatch(GraphCalls(GraphReport(id="", name="")), eager, [], lambda sizes: None, points, **more)


def graph(function: Callable[..., Any]) -> StandIn:
    return StandIn(torch.fx.symbolic_trace(function))


class Repeatable:
    """An eager run that is always held; the test keeps or drops the holds."""

    def __init__(self) -> None:
        self.holds: list[Hold | None] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def __call__(self, *args: Any, hold: Hold | None = None) -> Any:
        self.holds.append(hold)
        return "eager"

    def may_be_repeated(self, args: Sequence[Any]) -> bool:
        self.meanwhile()
        return True

    def must_not_mix(self, args: Sequence[Any]) -> bool:
        return False


def test_a_swap_waits_for_all_holds_and_comes_with_the_last() -> None:
    points, eager = SafePoints(), Repeatable()
    first, second = dispatch(eager, points), dispatch(eager, points)
    assert (first.call(), second.call()) == ("eager", "eager")
    first.serve_with(lambda: "compiled")
    assert first.call() == "eager"
    for hold in eager.holds[1:]:
        assert hold is not None
        hold.release()
        hold.release()  # twice is once
    assert first.call() == "eager"
    eager.holds.clear()  # the last reference counts as well
    gc.collect()
    assert first.call() == "compiled"


def test_a_graph_that_never_ran_eager_there_is_swapped_in_spite_of_others() -> None:
    points, eager = SafePoints(), Repeatable()
    dispatch(eager, points).call()
    other = dispatch(eager, points)
    other.serve_with(lambda: "compiled")
    assert other.call() == "compiled"


def test_a_swap_that_comes_while_a_call_begins_serves_that_call() -> None:
    points, eager = SafePoints(), Repeatable()
    made = dispatch(eager, points)
    eager.meanwhile = lambda: made.serve_with(lambda: "compiled")
    assert made.call() == "compiled"
    assert eager.holds == []


def test_a_swap_in_another_thread_does_not_come_between() -> None:
    points, eager = SafePoints(), Repeatable()
    made = dispatch(eager, points)
    made.call()
    thread = threading.Thread(target=made.serve_with, args=[lambda: "compiled"])
    thread.start()
    thread.join()
    assert made.call() == "eager"


def test_a_capture_of_a_cuda_graph_is_not_swapped() -> None:
    capturing = [True]
    made = dispatch(graph(lambda x: x + 1), SafePoints(), is_capturing=lambda: capturing[0])
    made.serve_with(lambda x: "compiled")
    assert torch.equal(made.call(torch.zeros(1)), torch.ones(1))
    capturing[0] = False
    assert made.call(torch.zeros(1)) == "compiled"


# ---------------------------------------------------------------- with autograd


def one_block(points: SafePoints) -> tuple[Dispatch, torch.Tensor, list[str]]:
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

    made = dispatch(Traced(), points)
    made.compiled = compiled  # type: ignore[attr-defined]
    return made, weight, ran


def test_a_recomputation_is_as_its_forward_was_and_the_next_forward_is_swapped() -> None:
    made, weight, ran = one_block(SafePoints())

    def step(between: Callable[[], None] = lambda: None) -> None:
        x = torch.ones(2, 4, requires_grad=True)
        loss = checkpoint(lambda x: made.call(x, weight)[0], x, use_reentrant=False).sum()
        between()
        loss.backward()

    step()
    step(lambda: made.serve_with(made.compiled))  # type: ignore[attr-defined]
    step()
    assert ran == ["eager", "eager", "eager", "eager", "compiled", "compiled"]


def test_a_graph_that_is_retained_is_held_until_it_is_gone() -> None:
    made, weight, ran = one_block(SafePoints())
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


def test_without_hooks_a_swap_comes_between_forward_and_backward() -> None:
    made, weight, ran = one_block(SafePoints())
    loss = made.call(torch.ones(2, 4), weight)[0].sum()
    made.serve_with(made.compiled)  # type: ignore[attr-defined]
    made.call(torch.ones(2, 4), weight)
    loss.backward()
    assert ran == ["eager", "compiled"]


def dropped(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.nn.functional.dropout(x, 0.5),)


@pytest.mark.parametrize("random", [True, False])
def test_in_a_reentrant_checkpoint_what_draws_random_numbers_waits(random: bool) -> None:
    made = dispatch(graph(dropped if random else lambda x: (x * 2,)), SafePoints())
    awaited: list[str] = []

    def comes() -> None:
        awaited.append("waited")
        made.serve_with(lambda x: (x * 3,))

    made.await_artifact = comes
    x = torch.ones(4, requires_grad=True)
    output = checkpoint(lambda x: made.call(x)[0], x, use_reentrant=True)
    output.sum().backward()
    assert awaited == (["waited"] if random else [])
    assert torch.equal(output, torch.full((4,), 3.0 if random else 2.0))


def test_outside_of_what_is_computed_again_nothing_waits_for_random_numbers() -> None:
    made = dispatch(graph(dropped), SafePoints())
    made.await_artifact = lambda: pytest.fail("it waited")
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
    assert surroundings.draws(run, [x]) is draws
    assert torch.equal(torch.get_rng_state(), state)
