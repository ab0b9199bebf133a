"""Assertions on values that only a run knows are captured, and run eager (runtime_assertions.py)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support_session import ThisProcess, deaf_daemon, this_process
from torch.fx.experimental.symbolic_shapes import CallMethodKey

from precompiled import backend
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


# With a number for which it holds, and one for which it does not.
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
def test_what_runs_eager_asserts_and_so_does_what_is_sent(
    function: Callable[..., Any], good: int, bad: int, through: Backend
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=through, fullgraph=True)
    torch.testing.assert_close(compiled(*inputs(good)), function(*inputs(good)))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        compiled(*inputs(bad))


def test_a_graph_that_has_all_its_assertions_is_left_as_it_is() -> None:
    kept = []

    def look(module: torch.fx.GraphModule, _: list[Any]) -> Any:
        kept.append(runtime_assertions.restored(module) is module)
        return module.forward

    for function in (at_most_the_size, lambda x, n: x + n):
        torch._dynamo.reset()
        torch.compile(function, backend=look)(*inputs(9))
    assert kept == [True, True]


def test_before_its_artifact_is_there_a_graph_asserts_what_plain_does() -> None:
    with deaf_daemon() as here:
        torch._dynamo.reset()
        compiled = torch.compile(both_sizes, backend="precompiled")
        compiled(*inputs(19))
        with pytest.raises(RuntimeError):
            compiled(*inputs(50))
        (graph,) = here.reports()
        # Nobody answers, so this process compiles it, and raises what compiled code raises.
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
def test_what_is_assumed_of_unbacked_inputs_is_asserted_by_the_graph(
    function: Callable[..., Any], given: tuple[int, ...], violating: tuple[int, ...], marks: dict[str, Any]
) -> None:
    """Where Dynamo has a guard as well, no call gets as far; a graph that is called beside it must not be wrong."""
    if not marks.keys() <= inspect.signature(torch._dynamo.decorators.mark_unbacked).parameters.keys():
        pytest.skip("this torch cannot mark a size so")
    made = []

    def look(module: torch.fx.GraphModule, _: list[Any]) -> Any:
        inputs = module.graph.find_nodes(op="placeholder")
        made.append((runtime_assertions.restored(module), [node.meta["example_value"] for node in inputs]))
        return module.forward

    torch._dynamo.reset()
    torch.compile(function, backend=look)(*unbacked(*given, **marks))
    ((module, examples),) = made

    def run(tensors: list[torch.Tensor]) -> None:
        """Each size before the tensor that it is of."""
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
def test_a_value_that_is_at_no_place_that_we_know(here: ThisProcess) -> None:
    def elsewhere(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        for node in module.graph.nodes:
            for symbol in node.meta.get("unbacked_bindings") or {}:
                node.meta["unbacked_bindings"] = {symbol: (CallMethodKey("another"),)}
        return backend.precompiled(module, examples)

    here.call(both_sizes, *inputs(19), backend=elsewhere)
    assert "another" in here.was_refused("runtime-assertion")


@pytest.mark.reason("runtime-assertion")
def test_an_assertion_on_what_the_graph_does_not_have(here: ThisProcess) -> None:
    def without_sizes(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        for node in module.graph.find_nodes(op="placeholder"):
            node.meta["example_value"] = None
        return backend.precompiled(module, examples)

    here.call(both_sizes, *inputs(19), backend=without_sizes)
    assert "none of its values" in here.was_refused("runtime-assertion")
