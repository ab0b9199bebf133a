"""Tests of runtime_assertions.py: an assertion about a value known only at run time is part of the captured graph.

The eager run of the graph checks the assertion, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support_session import ThisProcess, deaf_daemon, this_process
from torch.fx.experimental.symbolic_shapes import CallMethodKey

from precompiled import backend
from precompiled.client import pending
from precompiled.torch_internals.client import graph_lowering, runtime_assertions
from precompiled.torch_internals.graph import graph_codec

Backend = Callable[[torch.fx.GraphModule, list[Any]], Any]


@pytest.fixture(autouse=True)
def data_is_captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        yield


def twice_the_size(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    value = (n + 7).item()
    torch._check(value == x.size(0) * 2)
    return x + 1


def both_sizes(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    value = (n + 7).item()
    torch._check(value == x.size(0) + x.size(1))
    return x + value


def seven(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    value = (n + 7).item()
    torch._check(value == 7)
    return x + value


def at_most_the_size(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    value = (n + 7).item()
    torch._check(value <= x.size(0))
    return x + value


def all_found(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    found = (x * (n - 2)).nonzero()
    torch._check(found.size(0) == 160)
    return x.sum() + found.sum()


# Each function, with a number that satisfies its assertion, and a number that violates its assertion.
CASES = [(twice_the_size, 25, 50), (both_sizes, 19, 50), (seven, 0, 50), (at_most_the_size, 9, 50), (all_found, 1, 2)]


def inputs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.ones(16, 10)
    torch._dynamo.mark_dynamic(x, 0)
    torch._dynamo.mark_dynamic(x, 1)
    return x, torch.tensor(n)


def stand_in(module: torch.fx.GraphModule, _: list[Any]) -> Any:
    return graph_lowering.plain(module).eager()


def as_a_worker_sees_it(module: torch.fx.GraphModule, _: list[Any]) -> Any:
    return graph_codec.decode(graph_codec.encode(graph_lowering.plain(module).module)).forward


@pytest.mark.parametrize("through", [stand_in, as_a_worker_sees_it])
@pytest.mark.parametrize(("function", "good", "bad"), CASES)
def test_eager_run_and_sent_graph_both_raise_on_a_violated_assertion(
    function: Callable[..., Any], good: int, bad: int, through: Backend
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=through, fullgraph=True)
    torch.testing.assert_close(compiled(*inputs(good)), function(*inputs(good)))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        compiled(*inputs(bad))


def test_graph_with_all_its_assertions_is_unchanged() -> None:
    kept = []

    def look(module: torch.fx.GraphModule, _: list[Any]) -> Any:
        kept.append(runtime_assertions.restore_assertions(module) is module)
        return module.forward

    for function in (at_most_the_size, lambda x, n: x + n):
        torch._dynamo.reset()
        torch.compile(function, backend=look)(*inputs(9))
    assert kept == [True, True]


@pytest.mark.integration
def test_pending_graph_raises_on_a_violated_assertion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "ALONE_S", 0.05)
    with deaf_daemon() as here:
        torch._dynamo.reset()
        compiled = torch.compile(both_sizes, backend="precompiled")
        compiled(*inputs(19))
        with pytest.raises(RuntimeError):
            compiled(*inputs(50))
        (graph,) = here.reports()
        # The eager run raised, so the client compiled the graph in process: compiled code decides the exception.
        assert (graph.state, graph.calls_eager) == ("bypassed", 2)


def unbacked(*sizes: int, **bounds: Any) -> list[torch.Tensor]:
    found = [torch.randn(size) for size in sizes]
    for tensor in found:
        torch._dynamo.decorators.mark_unbacked(tensor, 0, **bounds)
    return found


@pytest.mark.parametrize(
    ("function", "given", "violating", "marks"),
    [
        pytest.param(lambda x, y: x + y, (4, 4), (4, 3), {}, id="equal"),
        pytest.param(lambda x: x * 2, (5,), (3,), {"min": 4, "max": 8}, id="bounds"),
        pytest.param(lambda x, y: x.sum() + y.sum(), (5, 5), (4, 5), {"shape_id": "batch"}, id="shape-id"),
        pytest.param(lambda x: x.view(-1, 2).sum(1), (6,), (7,), {}, id="divisible"),
    ],
)
def test_assumptions_about_unbacked_inputs_are_asserted_by_the_graph(
    function: Callable[..., Any], given: tuple[int, ...], violating: tuple[int, ...], marks: dict[str, Any]
) -> None:
    """Without the assertion, a graph would compute a wrong result for inputs that violate the assumption.

    The test calls the graph directly, because Dynamo may have a guard for the assumption and retrace.
    """
    if not marks.keys() <= inspect.signature(torch._dynamo.decorators.mark_unbacked).parameters.keys():
        pytest.skip("this torch cannot mark a size so")
    made = []

    def look(module: torch.fx.GraphModule, _: list[Any]) -> Any:
        inputs = module.graph.find_nodes(op="placeholder")
        made.append((runtime_assertions.restore_assertions(module), [node.meta["example_value"] for node in inputs]))
        return module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=look)(*unbacked(*given, **marks))
    ((module, examples),) = made

    def run(tensors: list[torch.Tensor]) -> None:
        """Call the graph's module. The module's input before each tensor may be the size of the tensor."""
        left, sizes = list(tensors), [tensor.shape[0] for tensor in tensors]
        module(*(sizes.pop(0) if isinstance(example, torch.SymInt) else left.pop(0) for example in examples))

    run([torch.randn(size) for size in given])
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        run([torch.randn(size) for size in violating])


@pytest.fixture
def here() -> Iterator[ThisProcess]:
    with this_process() as found:
        yield found


@pytest.mark.reason("runtime-assertion")
def test_unbacked_value_at_an_unknown_place_is_refused(here: ThisProcess) -> None:
    def elsewhere(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        for node in module.graph.nodes:
            for symbol in node.meta.get("unbacked_bindings") or {}:
                node.meta["unbacked_bindings"] = {symbol: (CallMethodKey("another"),)}
        return backend.precompiled(module, examples)

    here.call(both_sizes, *inputs(19), backend=elsewhere)
    assert "another" in here.was_refused("runtime-assertion")


@pytest.mark.reason("runtime-assertion")
def test_assertion_on_a_value_outside_of_the_graph_is_refused(here: ThisProcess) -> None:
    def without_sizes(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        for node in module.graph.find_nodes(op="placeholder"):
            node.meta["example_value"] = None
        return backend.precompiled(module, examples)

    here.call(both_sizes, *inputs(19), backend=without_sizes)
    assert "lacks one of its values" in here.was_refused("runtime-assertion")
