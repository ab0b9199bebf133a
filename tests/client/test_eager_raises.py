"""Tests of eager runs that raise: the client undoes the run's effects and runs compiled code instead. The program gets
an exception only if compiled code raises too, or if the client cannot undo the run.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support_session import deaf_daemon
from torch.utils.checkpoint import checkpoint

from precompiled.client import submit
from precompiled.client.dispatch import Dispatch
from precompiled.client.ledger import GraphCalls, GraphReport
from precompiled.torch_internals.eager import undo_effects
from precompiled.torch_internals.eager.stand_in import StandIn

X = torch.arange(1.0, 5.0)


def fails(x: torch.Tensor) -> torch.Tensor:
    """Raise NotImplementedError when run eager: torch's eager mode cannot add uint32 tensors."""
    small = x.to(torch.uint32)
    return small + small


class Graph:
    """A graph that runs eager until one of its calls waits for ``compiled``. If ``compiled`` is None, no artifact
    comes.
    """

    def __init__(self, function: Callable[..., Any], compiled: Callable[..., Any] | None, **more: Any) -> None:
        self.waits: list[str] = []
        self.raised: list[tuple[str, bool]] = []
        self.dispatch = Dispatch(
            GraphCalls(GraphReport(id="", name="")),
            StandIn(torch.fx.symbolic_trace(function)),
            [],
            lambda sizes: None,
            raised=lambda error, served: self.raised.append((type(error).__name__, served)),
            **more,
        )

        def wait() -> None:
            self.waits.append("waited")
            if compiled is not None:
                self.dispatch.serve_with(compiled)

        self.dispatch.awaits[()] = wait
        self.call = self.dispatch.call


def test_compiled_code_replaces_an_eager_run_that_raises() -> None:
    made = Graph(fails, lambda x: "compiled")
    assert [made.call(X), made.call(X)] == ["compiled", "compiled"]
    assert made.waits == ["waited"] and made.raised == [("NotImplementedError", False), ("NotImplementedError", True)]


@pytest.mark.fault("program")
def test_exception_of_compiled_code_is_raised_without_context() -> None:
    def compiled(x: torch.Tensor) -> Any:
        raise KeyError("compiled")

    with pytest.raises(KeyError, match="compiled") as raised:
        Graph(fails, compiled).call(X)
    assert raised.value.__context__ is None and raised.value.__cause__ is None


@pytest.mark.fault("program")
def test_eager_exception_is_raised_if_no_compiled_code_comes() -> None:
    made = Graph(fails, None)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="UInt32"):
            made.call(X)
    assert len(made.waits) == 2, "it ran eager, and did not wait"


@pytest.mark.fault("program")
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupt_of_an_eager_run_is_raised_at_once(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: StandIn, *args: Any) -> Any:
        raise kind

    monkeypatch.setattr(StandIn, "__call__", interrupted)
    made = Graph(lambda x: x * 2, lambda x: "compiled")
    with pytest.raises(kind):
        made.call(X)
    assert made.waits == []


def test_no_wait_during_a_cuda_graph_capture() -> None:
    made = Graph(fails, lambda x: "compiled", is_capturing=lambda: True)
    with pytest.raises(NotImplementedError):
        made.call(X)
    assert made.waits == []


def twice(x: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return fails(x)


def a_view(x: torch.Tensor) -> torch.Tensor:
    x.view(2, 2)[0].add_(1)
    return fails(x)


def several(x: torch.Tensor) -> torch.Tensor:
    torch._foreach_mul_([x, x], 3)
    return fails(x)


def an_output(x: torch.Tensor) -> torch.Tensor:
    torch.add(x, 1, out=x)
    return fails(x)


def an_activation(x: torch.Tensor) -> torch.Tensor:
    F.threshold(x, 2.0, 0.0, inplace=True)
    return fails(x)


def random(x: torch.Tensor) -> torch.Tensor:
    return fails(F.dropout(x, 0.5))


WRITERS = [twice, a_view, several, an_output, an_activation, random]


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("function", WRITERS)
def test_effects_of_the_eager_run_are_undone_before_compiled_code_runs(
    function: Callable[..., Any], inference: bool
) -> None:
    with torch.inference_mode(inference):
        x = X.clone()
        found: list[Any] = []

        def compiled(given: torch.Tensor) -> str:
            found.extend([given.clone(), torch.get_rng_state(), 0 if inference else given._version])
            return "compiled"

        wanted = [X, torch.get_rng_state(), 0]
        assert Graph(function, compiled).call(x) == "compiled"
    assert torch.equal(found[0], wanted[0]) and torch.equal(found[1], wanted[1]) and found[2] == wanted[2]


def test_tensors_saved_for_a_backward_stay_valid() -> None:
    a, x = torch.ones(4, requires_grad=True), X.clone()
    loss = (a * x).sum()
    assert Graph(twice, lambda given: "compiled").call(x) == "compiled"
    loss.backward()
    assert torch.equal(a.grad, X)


def test_batch_norm_statistics_are_restored() -> None:
    def function(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return fails(F.batch_norm(x, mean, var, training=True))

    given = (torch.randn(4, 3), torch.zeros(3), torch.ones(3), torch.tensor(7))
    before = [value.clone() for value in given]
    assert Graph(function, lambda *args: "compiled").call(*given) == "compiled"
    assert all(map(torch.equal, given, before))


def test_input_with_autograd_history_is_restored() -> None:
    a = torch.ones(4, requires_grad=True)
    x = a * 1
    node = x.grad_fn
    assert Graph(twice, lambda given: "compiled").call(x) == "compiled"
    assert torch.equal(x, torch.ones(4)) and x.grad_fn is node


def changes_behind(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    made = fails(y)
    x.add_(1)
    return made


def changes_before(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return fails(y)


def test_change_of_a_large_input_is_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An input above MAX_BYTES is not copied before an eager run. If the run changes the input and raises, the client
    cannot undo the change, so the program gets the exception.
    """
    monkeypatch.setattr(undo_effects, "MAX_BYTES", 8)
    x = X.clone()
    assert Graph(changes_behind, lambda *args: "compiled").call(x, X) == "compiled" and torch.equal(x, X)
    made = Graph(changes_before, lambda *args: "compiled")
    with pytest.raises(NotImplementedError):
        made.call(x, X)
    assert made.waits == [] and torch.equal(x, X + 1)


def test_a_change_of_metadata_is_not_undone() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.unsqueeze_(0)
        return fails(x)

    made, x = Graph(function, lambda given: "compiled"), X.clone()
    with pytest.raises(NotImplementedError):
        made.call(x)
    assert made.waits == []


CALLS: list[int] = []


@torch.library.custom_op("test_eager_raises::refuses", mutates_args=())
def refuses(x: torch.Tensor) -> torch.Tensor:
    CALLS.append(1)
    raise ValueError("refused")


def test_custom_operator_is_not_called_twice() -> None:
    """A custom operator may count or print, so compiled code must not repeat an operator that has already run and
    raised.
    """
    CALLS.clear()
    made = Graph(lambda x: refuses(x) * 2, lambda x: "compiled")
    with pytest.raises(ValueError, match="refused"):
        made.call(X)
    assert made.waits == [] and len(CALLS) == 1


KEPT: list[weakref.ref[torch.Tensor]] = []


def noted(x: torch.Tensor) -> torch.Tensor:
    made = x * 2
    KEPT.append(weakref.ref(made))
    return made


torch.fx.wrap("noted")


def test_values_of_the_failed_run_are_freed_before_compiled_code_runs() -> None:
    """The eager run may have raised for lack of memory, so its values must not take memory from compiled code."""
    KEPT.clear()
    assert Graph(lambda x: fails(noted(x)), lambda x: [one() for one in KEPT]).call(X) == [None]


def test_checkpoint_recomputes_with_compiled_code() -> None:
    """A checkpoint counts the tensors that a run saves. The tensors of an eager run that raised must not be counted."""

    def compiled(x: torch.Tensor) -> torch.Tensor:
        made.waits.append("ran")
        return x.sin().cos()

    made = Graph(lambda x: fails(x.sin().exp().tanh()), compiled)
    x = X.clone().requires_grad_()
    checkpoint(made.call, x, use_reentrant=False).sum().backward()
    assert made.waits == ["waited", "ran", "ran"]
    expected = X.clone().requires_grad_()
    expected.sin().cos().sum().backward()
    assert torch.equal(x.grad, expected.grad)


def test_second_call_within_a_checkpoint_stays_eager() -> None:
    """The first call in the checkpoint ran eager, so the checkpoint must also recompute it in eager mode. So if a later
    call in the same checkpoint raises, the graph must not switch to compiled code.
    """
    made = Graph(lambda x: torch.bincount(x.to(torch.int64)), lambda x: "compiled")

    def both(x: torch.Tensor) -> torch.Tensor:
        made.call(x)
        return made.call(-x)

    with pytest.raises(RuntimeError, match="bincount"):
        checkpoint(both, (X * 2).requires_grad_(), use_reentrant=False)


def test_nan_detection_uses_compiled_code() -> None:
    made, x = Graph(lambda x: x * 2, lambda x: "compiled"), X.clone().requires_grad_()
    assert torch.equal(made.call(x), X * 2)
    with torch.autograd.detect_anomaly(check_nan=False):
        assert torch.equal(made.call(x), X * 2)
    with torch.autograd.detect_anomaly():
        assert torch.equal(made.call(X), X * 2), "nothing is differentiated"
        assert made.call(x) == "compiled"


@pytest.mark.reason("stand-in-raised")
def test_graph_without_an_artifact_in_time_is_compiled_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with deaf_daemon(PRECOMPILED_WAIT_S="0.01") as here:
        monkeypatch.setattr(submit, "compile_inline", lambda *_: (lambda x: ["compiled"], ""))
        compiled = torch.compile(fails, backend="precompiled")
        assert [compiled(X), compiled(X)] == ["compiled", "compiled"]
        (graph,) = here.reports()
        assert (graph.source, graph.reason) == ("inline", "stand-in-raised") and "UInt32" in graph.message
        assert here.counted("fallbacks") == {"stand-in-raised": 1}
